//! A scripted engine and a tiny tokenizer, so that the server can be tested without a model.

#![allow(dead_code, unused_imports, unreachable_pub)] // Each test binary uses its part.

mod client;
mod engine;
mod server;
mod tokenizer;

pub use client::{Client, Reply, post, request};
pub use engine::{Act, Scripted};
pub use server::Server;
pub use tokenizer::{LONG, control, ids, json as tokenizer_json, tokenizer};
