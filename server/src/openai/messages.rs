//! `messages`: roles, contents, and the pairing of tool calls with their results.

use serde_json::Value;

use super::ApiError;
use super::fields::Fields;
use crate::chat::{Assistant, Message, ToolCall};

pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let list = fields.array("messages")?.filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| fields.unexpected("messages", "a non-empty array"))?;
    let mut messages = Vec::with_capacity(list.len());
    let mut unanswered: Vec<String> = Vec::new();
    for (i, value) in list.iter().enumerate() {
        let message = Fields::at(value, format!("messages[{i}]"))?;
        let parsed = read_one(&message, i + 1 == list.len())?;
        pair(&parsed, &message, &mut unanswered)?;
        messages.push(parsed);
    }
    let last = format!("messages[{}]", list.len() - 1);
    refuse_unanswered(&unanswered, &last)?;
    Ok(messages)
}

fn read_one(message: &Fields<'_>, last: bool) -> Result<Message, ApiError> {
    let role = message.string("role")?.ok_or_else(|| message.error("role", "required"))?;
    match role {
        // Clients of reasoning models call the system message "developer".
        "system" | "developer" => content(message).map(Message::System),
        "user" => content(message).map(Message::User),
        "assistant" => assistant(message, last).map(Message::Assistant),
        "tool" => {
            let call_id = message.string("tool_call_id")?;
            let call_id = call_id.ok_or_else(|| message.error("tool_call_id", "required"))?.to_owned();
            Ok(Message::Tool { call_id, content: content(message)? })
        }
        _ => Err(message.unexpected("role", "system, developer, user, assistant or tool")),
    }
}

fn assistant(message: &Fields<'_>, last: bool) -> Result<Assistant, ApiError> {
    let calls = message.array("tool_calls")?.map_or(&[][..], Vec::as_slice);
    let calls: Vec<ToolCall> = calls
        .iter()
        .enumerate()
        .map(|(i, call)| tool_call(&Fields::at(call, format!("{}[{i}]", message.path("tool_calls")))?))
        .collect::<Result<_, _>>()?;
    let content = match message.get("content") {
        None if calls.is_empty() => {
            return Err(message.error("content", "required unless the message has tool_calls"));
        }
        None => String::new(),
        Some(_) => content(message)?,
    };
    let prefix = message.bool("prefix")?.unwrap_or(false);
    if prefix && (!last || !calls.is_empty()) {
        return Err(message.error("prefix", "only the last message, without tool calls, can be continued"));
    }
    let reasoning = match message.string("reasoning_content")? {
        Some(reasoning) => reasoning,
        None => message.string("reasoning")?.unwrap_or_default(),
    };
    if message.get("function_call").is_some() {
        return Err(ApiError::unsupported(message.path("function_call")));
    }
    Ok(Assistant { content, reasoning: reasoning.to_owned(), calls, prefix })
}

fn tool_call(call: &Fields<'_>) -> Result<ToolCall, ApiError> {
    let id = call.string("id")?.ok_or_else(|| call.error("id", "required"))?.to_owned();
    let function = call.object("function")?.ok_or_else(|| call.error("function", "required"))?;
    let name = function.string("name")?.ok_or_else(|| function.error("name", "required"))?.to_owned();
    let arguments = match function.get("arguments") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return Err(function.unexpected("arguments", "a string or an object")),
    };
    Ok(ToolCall { id, name, arguments: if arguments.is_empty() { "{}".into() } else { arguments } })
}

/// A string, or text parts joined by a blank line.
fn content(message: &Fields<'_>) -> Result<String, ApiError> {
    match message.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let path = message.path("content");
            let texts: Result<Vec<&str>, ApiError> =
                parts.iter().enumerate().map(|(i, part)| text_part(part, format!("{path}[{i}]"))).collect();
            Ok(texts?.join("\n\n"))
        }
        _ => Err(message.unexpected("content", "a string or an array of text parts")),
    }
}

fn text_part(part: &Value, path: String) -> Result<&str, ApiError> {
    let part = Fields::at(part, path)?;
    match part.string("type")? {
        Some("text") => part.string("text")?.ok_or_else(|| part.error("text", "required")),
        Some(other) => {
            Err(part
                .error("type", &format!("expected \"text\", found {other:?}; this model reads text only")))
        }
        None => Err(part.error("type", "required")),
    }
}

/// Every call is followed by exactly one result, before anything else is said.
fn pair(parsed: &Message, message: &Fields<'_>, unanswered: &mut Vec<String>) -> Result<(), ApiError> {
    if let Message::Tool { call_id, .. } = parsed {
        let at = unanswered.iter().position(|id| id == call_id);
        let at = at.ok_or_else(|| {
            message.error("tool_call_id", "answers no open call of the preceding assistant message")
        })?;
        unanswered.remove(at);
        return Ok(());
    }
    refuse_unanswered(unanswered, message.path("role").trim_end_matches(".role"))?;
    if let Message::Assistant(assistant) = parsed {
        for call in &assistant.calls {
            if unanswered.contains(&call.id) {
                return Err(message.error("tool_calls", &format!("the id {:?} appears twice", call.id)));
            }
            unanswered.push(call.id.clone());
        }
    }
    Ok(())
}

fn refuse_unanswered(unanswered: &[String], path: &str) -> Result<(), ApiError> {
    match unanswered.first() {
        None => Ok(()),
        Some(id) => Err(ApiError::field(
            path,
            format!("'{path}': the tool call {id:?} has no message with role \"tool\""),
        )),
    }
}
