//! A conversation as the encoder needs it: validated, free of JSON shapes.

use serde_json::{Map, Value};

/// One message of the history, text parts already joined.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    System(String),
    User(String),
    Assistant(Assistant),
    /// The result of the call with this id.
    Tool {
        call_id: String,
        content: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assistant {
    pub content: String,
    pub reasoning: String,
    pub calls: Vec<ToolCall>,
    /// The model goes on with this turn instead of answering it. Only the last message may.
    pub prefix: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// As the client sent it: usually a JSON object, but old turns may hold anything.
    pub arguments: String,
}

/// A declared function.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: String,
    /// A JSON schema; `{}` when the client sent none.
    pub parameters: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum ToolChoice {
    None,
    #[default]
    Auto,
    Required,
    Named(String),
}

/// How much the model is told to think. Only `Max` changes the prompt of this model family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    #[default]
    Default,
    Max,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
    pub thinking: bool,
    pub effort: Effort,
}
