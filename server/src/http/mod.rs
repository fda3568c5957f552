//! The HTTP side: connections, routes, streams.
//!
//! Connections are accepted here and not by `axum::serve`, because its header timeout is off without a timer and its
//! rejections are plain text. Every refusal of this server is an OpenAI error object.

mod app;
mod body;
mod connection;
mod drain;
mod generate;
mod info;
mod metrics;
mod router;
mod serve;
mod sse;

pub use app::{App, Defaults, ServerOptions};
pub use router::router;
pub use serve::serve;
