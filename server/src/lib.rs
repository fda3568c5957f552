//! The HTTP shell and the command line.
#![forbid(unsafe_code)]

pub mod chat;
pub mod dsml;
pub mod generation;
pub mod http;
mod ids;
pub mod openai;
