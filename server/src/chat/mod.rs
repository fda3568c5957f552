//! Chat encoding: conversations to prompt token ids, and token ids back to text.
//!
//! The layout is DeepSeek-V4's. Control tokens are written as ids, never as text: what a user or a tool writes is
//! encoded by a tokenizer that does not know them, so no spelling can open a turn or close the reasoning.

mod control;
mod encode;
mod layout;
mod message;
mod tokenizer;
mod utf8;

pub use control::Control;
pub use encode::{Opening, Prompt, render};
pub use layout::{Piece, Pieces};
pub use message::{Assistant, Conversation, Effort, Message, Tool, ToolCall, ToolChoice};
pub use tokenizer::{ChatTokenizer, EncodeError, Symbol, TokenizerError};
pub use utf8::Utf8Stream;
