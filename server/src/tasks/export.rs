//! An item as JSON: OpenAI messages and tools, the exact token ids, and the oracle of each assistant turn.

use std::ops::Range;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::conversation::{Call, Conversation, Role, Turn};
use super::items::{Item, Shape};

/// The item as one JSON object.
///
/// `turns[i]` says how many of the messages form the request, which ids are the expected reply (`start..end`, EOS included) and
/// what the reply says; the prompt of that request is `ids[..start]`.
pub fn item(item: &Item<'_>, shape: Shape, seed: u64, index: u64) -> Result<Value> {
    let conv = &item.conv;
    let declared = item.withheld.as_ref().unwrap_or(conv);
    let mut value = json!({
        "kind": shape.kind, "seed": seed, "index": index, "thinking": shape.thinking,
        "tool_choice": if item.withheld.is_some() { "none" } else { "auto" },
        "messages": messages(conv)?, "turns": turns(conv)?,
        "ids": conv.ids, "classes": conv.classes, "spans": spans(conv),
    });
    if !declared.schemas.is_empty() {
        value["tools"] = tools(declared)?;
    }
    Ok(value)
}

fn text(conv: &Conversation<'_>, range: &Range<usize>) -> Result<String> {
    conv.lexicon.decode(&conv.ids[range.clone()])
}

/// The declared tools in OpenAI's form.
pub fn tools(conv: &Conversation<'_>) -> Result<Value> {
    let tool = |range| {
        let schema = text(conv, range)?;
        let function: Value =
            serde_json::from_str(&schema).with_context(|| format!("tool schema {schema}"))?;
        Ok(json!({"type": "function", "function": function}))
    };
    Ok(Value::Array(conv.schemas.iter().map(tool).collect::<Result<_>>()?))
}

/// The whole conversation as OpenAI messages.
pub fn messages(conv: &Conversation<'_>) -> Result<Vec<Value>> {
    conv.turns
        .iter()
        .enumerate()
        .filter(|(_, turn)| !is_empty_system(turn))
        .map(|(i, turn)| message(conv, i, turn))
        .collect()
}

/// A prompt with tools and no system text has no system message.
fn is_empty_system(turn: &Turn) -> bool {
    turn.role == Role::System && turn.content.is_empty()
}

fn message(conv: &Conversation<'_>, index: usize, turn: &Turn) -> Result<Value> {
    let content = text(conv, &turn.content)?;
    Ok(match turn.role {
        Role::System => json!({"role": "system", "content": content}),
        Role::User => json!({"role": "user", "content": content}),
        Role::Tool => json!({"role": "tool", "tool_call_id": call_id(index - 1), "content": content}),
        Role::Assistant => {
            let mut message = json!({"role": "assistant", "content": content});
            if !turn.reasoning.is_empty() {
                message["reasoning_content"] = text(conv, &turn.reasoning)?.into();
            }
            if let Some(call) = &turn.call {
                let function =
                    json!({"name": text(conv, &call.name)?, "arguments": arguments(conv, call)?.to_string()});
                message["tool_calls"] =
                    json!([{"id": call_id(index), "type": "function", "function": function}]);
            }
            message
        }
    })
}

fn call_id(turn: usize) -> String {
    format!("call_{turn}")
}

fn arguments(conv: &Conversation<'_>, call: &Call) -> Result<Value> {
    let mut arguments = Map::new();
    for param in &call.params {
        let value = text(conv, &param.value)?;
        let value = if param.is_string { Value::String(value) } else { serde_json::from_str(&value)? };
        arguments.insert(text(conv, &param.name)?, value);
    }
    Ok(Value::Object(arguments))
}

fn turns(conv: &Conversation<'_>) -> Result<Vec<Value>> {
    let dropped = usize::from(conv.turns.first().is_some_and(is_empty_system));
    let replies = conv.turns.iter().enumerate().filter(|(_, turn)| turn.role == Role::Assistant);
    replies.map(|(i, turn)| reply(conv, i - dropped, turn)).collect()
}

fn reply(conv: &Conversation<'_>, num_messages: usize, turn: &Turn) -> Result<Value> {
    let start = turn.reasoning.start;
    let length = conv.ids[start..]
        .iter()
        .position(|&id| id == super::lexicon::EOS)
        .context("a reply without its end")?;
    let mut reply = json!({"messages": num_messages, "start": start, "end": start + length + 1});
    match &turn.call {
        Some(call) => {
            reply["call"] = json!({"name": text(conv, &call.name)?, "arguments": arguments(conv, call)?});
        }
        None => reply["content"] = text(conv, &turn.content)?.into(),
    }
    Ok(reply)
}

/// Answer spans as `[start, end, kind, distance]`.
fn spans(conv: &Conversation<'_>) -> Vec<Value> {
    conv.spans
        .iter()
        .map(|span| json!([span.range.start, span.range.end, span.kind, span.distance]))
        .collect()
}
