//! What the model answered to one request, however it came.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::generation::Delta;

/// One answer, as the client of a stream puts it together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub content: String,
    pub reasoning: String,
    pub calls: Vec<Called>,
    /// Text came behind a call.
    pub stray: bool,
    /// As the API names it.
    pub finish: String,
    /// Tokens of the prompt; 0 if a server does not say.
    pub prompt: usize,
    /// Its tokens, the end token included; none over HTTP.
    pub ids: Vec<u32>,
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    pub name: String,
    /// As sent: JSON unless something is wrong.
    pub arguments: String,
}

impl Answer {
    /// Adds a piece.
    pub fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning += &text,
            Delta::Text { text, .. } => self.text(&text),
            Delta::CallStart { index, name } => self.call(index).name += &name,
            Delta::Arguments { index, fragment } => self.call(index).arguments += &fragment,
            Delta::CallEnd { .. } => {}
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.stray |= !self.calls.is_empty() && !text.trim().is_empty();
        self.content += text;
    }

    /// Indexes come in order; one out of order is taken for the next.
    pub(super) fn call(&mut self, index: usize) -> &mut Called {
        let index = index.min(self.calls.len());
        if index == self.calls.len() {
            self.calls.push(Called::default());
        }
        &mut self.calls[index]
    }

    /// The message that stands for this answer in the history, in the place of the `expected` one. Results are there for one
    /// call only, so further ones are left out.
    pub fn message(&self, expected: &Value) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if let Some(call) = self.calls.first() {
            let id = &expected["tool_calls"][0]["id"];
            let function = json!({"name": call.name, "arguments": call.arguments});
            message["tool_calls"] = json!([{"id": id, "type": "function", "function": function}]);
        }
        message
    }
}
