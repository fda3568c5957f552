//! From engine events to what a client reads: text, reasoning, tool calls, finish reasons, usage.
//!
//! Independent of HTTP: the routes and the terminal chat drive the same code. Dropping a [`Generation`] aborts it.

mod chat;
mod decoder;
mod run;
mod stops;
mod text;

pub use chat::ChatDecoder;
pub use decoder::{Decoder, Delta, Finish, Step, TokenLogprob};
pub use run::{Generation, Progress, Usage};
pub use stops::StopStrings;
pub use text::TextDecoder;
