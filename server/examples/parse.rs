//! The output parser on its own, for fixtures of others: `parse TOKENIZER_JSON < requests > answers`.
//!
//! A request is one line, `{"ids": [...], "thinking": bool, "tools": [...], "truncated": bool}`: what a model generated, as token
//! ids without the end token. The answer is one line, `{"content", "reasoning_content", "tool_calls", "finish_reason"}`.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use flashlane::engine::{FinishReason, Token};
use flashlane_server::chat::{ChatTokenizer, Conversation, Message, render};
use flashlane_server::dsml::{Config, ToolSchemas};
use flashlane_server::generation::{ChatDecoder, Decoder, Delta, Finish, Step};
use flashlane_server::openai::ChatRequest;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: parse TOKENIZER_JSON")?;
    let tokenizer = Arc::new(ChatTokenizer::from_bytes(&std::fs::read(path)?)?);
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        writeln!(out, "{}", answer(&tokenizer, &serde_json::from_str(&line?)?)?)?;
    }
    Ok(())
}

/// The conversation that was asked: only its mode and its tools matter here.
fn conversation(request: &Value) -> Result<Conversation> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": ""}]});
    if let Some(tools) = request.get("tools") {
        body["tools"] = tools.clone();
    }
    let read = ChatRequest::read(&body, request["thinking"] == true);
    let conversation = read.map_err(|error| anyhow::anyhow!("{}", error.message))?.conversation;
    Ok(Conversation { messages: vec![Message::User(String::new())], ..conversation })
}

fn answer(tokenizer: &Arc<ChatTokenizer>, request: &Value) -> Result<Value> {
    let conversation = conversation(request)?;
    let tools = conversation.tools.iter().map(|tool| (tool.name.as_str(), &tool.parameters));
    let config = Config { start: render(&conversation).opening, tools: ToolSchemas::new(tools) };
    let mut decoder = ChatDecoder::new(Arc::clone(tokenizer), config, Vec::new());
    let ids: Vec<u32> = serde_json::from_value(request["ids"].clone()).context("ids")?;
    let mut steps: Vec<Step> =
        ids.into_iter().map(|id| decoder.token(&Token { id, logprobs: None })).collect();
    let truncated = request["truncated"] == true;
    steps.push(decoder.end(if truncated { FinishReason::Length } else { FinishReason::Stop }));
    Ok(collect(steps))
}

fn collect(steps: Vec<Step>) -> Value {
    let (mut content, mut reasoning, mut finish) = (String::new(), String::new(), None);
    let mut calls: Vec<(String, String)> = Vec::new();
    for step in steps {
        finish = finish.or(step.finish);
        for delta in step.deltas {
            match delta {
                Delta::Reasoning(text) => reasoning += &text,
                Delta::Text { text, .. } => content += &text,
                Delta::CallStart { name, .. } => calls.push((name, String::new())),
                Delta::Arguments { index, fragment } => calls[index].1 += &fragment,
                Delta::CallEnd { .. } => {}
            }
        }
    }
    let calls: Vec<Value> =
        calls.iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect();
    json!({
        "content": content, "reasoning_content": reasoning, "tool_calls": calls,
        "finish_reason": finish.map(Finish::as_str),
    })
}
