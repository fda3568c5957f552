//! The OpenAI wire format: requests checked field by field, responses and stream chunks, error objects.
//!
//! A field that changes the answer and is not implemented is refused with its name; a field nobody knows is ignored.

mod chat;
mod completions;
mod error;
mod fields;
mod messages;
mod options;
mod response;
mod tools;

pub use chat::ChatRequest;
pub use completions::{CompletionRequest, PromptInput};
pub use error::ApiError;
pub use options::{Options, StreamOptions};
pub use response::{ChatFormat, CompletionFormat, Format, Head, Whole, usage_json};
