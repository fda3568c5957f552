//! Responses and stream chunks of both routes.
//!
//! Stream rules that clients depend on: every chunk carries the same head; the first has the role; a tool call's id,
//! type and name come once and whole; the last chunk of a choice has an empty delta and the finish reason.

use serde_json::{Map, Value, json};

use crate::generation::{Delta, Finish, TokenLogprob, Usage};
use crate::ids;

/// What all chunks of a response share.
#[derive(Clone, Debug)]
pub struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
}

/// One finished choice.
#[derive(Debug, Default)]
pub struct Whole {
    text: String,
    reasoning: String,
    /// Name, arguments.
    calls: Vec<(String, String)>,
    logprobs: Vec<TokenLogprob>,
    finish: Option<Finish>,
}

impl Whole {
    pub fn push(&mut self, deltas: Vec<Delta>, finish: Option<Finish>) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::Text { text, logprobs } => {
                    self.text += &text;
                    self.logprobs.extend(logprobs);
                }
                Delta::CallStart { name, .. } => self.calls.push((name, String::new())),
                Delta::Arguments { index, fragment } => self.calls[index].1 += &fragment,
                Delta::CallEnd { index, repeated_key: true } => without_repeats(&mut self.calls[index].1),
                Delta::CallEnd { .. } => {}
            }
        }
        self.finish = finish.or(self.finish);
    }

    fn finish(&self) -> &'static str {
        self.finish.map_or("stop", Finish::as_str)
    }
}

/// Rewrites an object with repeated keys to one where each key has its last value.
fn without_repeats(arguments: &mut String) {
    if let Ok(object) = serde_json::from_str::<Map<String, Value>>(arguments) {
        *arguments = Value::Object(object).to_string();
    }
}

/// The JSON of one route.
pub trait Format: Send {
    /// Chunks that open a choice.
    fn open(&mut self, choice: usize) -> Option<Value>;
    fn delta(&mut self, choice: usize, delta: Delta) -> Option<Value>;
    fn finish(&mut self, choice: usize, finish: Finish) -> Value;
    /// The chunk behind all choices.
    fn usage(&mut self, usage: Usage) -> Value;
    /// The answer without streaming.
    fn whole(&mut self, choices: Vec<Whole>, usage: Usage) -> Value;
}

pub fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

#[derive(Debug)]
pub struct ChatFormat {
    pub head: Head,
    /// The client asked for log-probabilities.
    pub logprobs: bool,
}

impl ChatFormat {
    fn chunk(&self, choices: Value) -> Value {
        let Head { id, created, model } = &self.head;
        json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices})
    }

    fn choice(&self, choice: usize, delta: Value, logprobs: Value, finish: Option<Finish>) -> Value {
        self.chunk(json!([{
            "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish.map(Finish::as_str),
        }]))
    }

    fn logprobs(&self, entries: &[TokenLogprob]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let token = |bytes: &[u8], logprob: f32| json!({"token": String::from_utf8_lossy(bytes), "logprob": finite(logprob), "bytes": bytes});
        let content: Vec<Value> = entries
            .iter()
            .map(|entry| {
                let mut value = token(&entry.bytes, entry.logprob);
                value["top_logprobs"] =
                    entry.top.iter().map(|(bytes, logprob)| token(bytes, *logprob)).collect();
                value
            })
            .collect();
        json!({"content": content, "refusal": null})
    }

    fn message(&self, whole: &Whole) -> Value {
        let calls: Vec<Value> = whole
            .calls
            .iter()
            .map(|(name, arguments)| {
                json!({"id": ids::call(), "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        let content =
            if whole.text.is_empty() && !calls.is_empty() { Value::Null } else { json!(whole.text) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !whole.reasoning.is_empty() {
            message["reasoning_content"] = json!(whole.reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        message
    }
}

impl Format for ChatFormat {
    fn open(&mut self, choice: usize) -> Option<Value> {
        Some(self.choice(choice, json!({"role": "assistant", "content": ""}), Value::Null, None))
    }

    fn delta(&mut self, choice: usize, delta: Delta) -> Option<Value> {
        let mut logprobs = Value::Null;
        let delta = match delta {
            Delta::Reasoning(text) => json!({"reasoning_content": text}),
            Delta::Text { text, logprobs: entries } => {
                logprobs = self.logprobs(&entries);
                json!({"content": text})
            }
            Delta::CallStart { index, name } => json!({"tool_calls": [{
                "index": index, "id": ids::call(), "type": "function", "function": {"name": name, "arguments": ""},
            }]}),
            Delta::Arguments { index, fragment } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]})
            }
            Delta::CallEnd { .. } => return None,
        };
        Some(self.choice(choice, delta, logprobs, None))
    }

    fn finish(&mut self, choice: usize, finish: Finish) -> Value {
        self.choice(choice, json!({}), Value::Null, Some(finish))
    }

    fn usage(&mut self, usage: Usage) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage_json(usage);
        chunk
    }

    fn whole(&mut self, choices: Vec<Whole>, usage: Usage) -> Value {
        let choices: Vec<Value> = choices
            .iter()
            .enumerate()
            .map(|(index, whole)| {
                json!({
                    "index": index,
                    "message": self.message(whole),
                    "logprobs": self.logprobs(&whole.logprobs),
                    "finish_reason": whole.finish(),
                })
            })
            .collect();
        let Head { id, created, model } = &self.head;
        json!({
            "id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": choices, "usage": usage_json(usage),
        })
    }
}

#[derive(Debug)]
pub struct CompletionFormat {
    pub head: Head,
    pub logprobs: bool,
    /// Bytes of text sent so far, by choice.
    pub offsets: Vec<usize>,
}

impl CompletionFormat {
    fn object(&self, choices: Value) -> Value {
        let Head { id, created, model } = &self.head;
        json!({"id": id, "object": "text_completion", "created": created, "model": model, "choices": choices})
    }

    fn choice(choice: usize, text: &str, logprobs: Value, finish: Option<&str>) -> Value {
        json!({"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish})
    }

    fn logprobs(&mut self, choice: usize, entries: &[TokenLogprob]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let token = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let offset = &mut self.offsets[choice];
        let offsets: Vec<usize> = entries
            .iter()
            .map(|entry| std::mem::replace(offset, *offset + token(&entry.bytes).chars().count()))
            .collect();
        let top = |entry: &TokenLogprob| -> Map<String, Value> {
            entry.top.iter().map(|(bytes, logprob)| (token(bytes), finite(*logprob))).collect()
        };
        json!({
            "tokens": entries.iter().map(|entry| token(&entry.bytes)).collect::<Vec<_>>(),
            "token_logprobs": entries.iter().map(|entry| finite(entry.logprob)).collect::<Vec<_>>(),
            "top_logprobs": entries.iter().map(top).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

impl Format for CompletionFormat {
    fn open(&mut self, _choice: usize) -> Option<Value> {
        None
    }

    fn delta(&mut self, choice: usize, delta: Delta) -> Option<Value> {
        let Delta::Text { text, logprobs } = delta else { return None };
        let logprobs = self.logprobs(choice, &logprobs);
        Some(self.object(json!([Self::choice(choice, &text, logprobs, None)])))
    }

    fn finish(&mut self, choice: usize, finish: Finish) -> Value {
        self.object(json!([Self::choice(choice, "", Value::Null, Some(finish.as_str()))]))
    }

    fn usage(&mut self, usage: Usage) -> Value {
        let mut chunk = self.object(json!([]));
        chunk["usage"] = usage_json(usage);
        chunk
    }

    fn whole(&mut self, choices: Vec<Whole>, usage: Usage) -> Value {
        let choices: Vec<Value> = choices
            .iter()
            .enumerate()
            .map(|(index, whole)| {
                let logprobs = self.logprobs(index, &whole.logprobs);
                Self::choice(index, &whole.text, logprobs, Some(whole.finish()))
            })
            .collect();
        let mut object = self.object(Value::Array(choices));
        object["usage"] = usage_json(usage);
        object
    }
}

/// JSON has no infinities; OpenAI's stand-in for "impossible" is -9999.
fn finite(logprob: f32) -> Value {
    json!(if logprob.is_finite() { logprob } else { -9999.0 })
}
