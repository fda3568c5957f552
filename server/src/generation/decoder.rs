//! What turns one sequence of tokens into deltas.

use flashlane::engine::{FinishReason, Logprobs, Token};

use crate::chat::ChatTokenizer;
use crate::dsml::Counters;

/// A piece of one choice of the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    Reasoning(String),
    Text { text: String, logprobs: Vec<TokenLogprob> },
    CallStart { index: usize, name: String },
    Arguments { index: usize, fragment: String },
    CallEnd { index: usize, repeated_key: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

/// A token with its log-probability and the most likely ones in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub bytes: Vec<u8>,
    pub logprob: f32,
    pub top: Vec<(Vec<u8>, f32)>,
}

impl TokenLogprob {
    pub fn new(id: u32, logprobs: &Logprobs, tokenizer: &ChatTokenizer) -> Self {
        let bytes = |id: u32| tokenizer.bytes(id).to_vec();
        let top = logprobs.top.iter().map(|(id, logprob)| (bytes(*id), *logprob)).collect();
        Self { bytes: bytes(id), logprob: logprobs.chosen, top }
    }
}

/// What one token brought.
#[derive(Debug, Default)]
pub struct Step {
    pub deltas: Vec<Delta>,
    /// The answer is complete although the model would go on.
    pub finish: Option<Finish>,
}

/// One choice of an answer.
pub trait Decoder: Send + std::fmt::Debug {
    fn token(&mut self, token: &Token) -> Step;

    /// The engine ended the sequence.
    fn end(&mut self, reason: FinishReason) -> Step;

    /// Tokens so far that were reasoning.
    fn reasoning_tokens(&self) -> usize {
        0
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
