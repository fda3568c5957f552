//! The HTTP server and the command line of flashlane.
//!
//! | module | what it holds |
//! |---|---|
//! | [`chat`] | conversation to prompt token ids, token ids to text |
//! | [`dsml`] | the parser of reasoning, content and tool calls |
//! | [`generation`] | engine events to deltas and finish reasons |
//! | [`openai`] | requests, responses, errors of the OpenAI API |
//! | [`http`] | connections, routes, streams, shutdown |
//! | [`tasks`] | the generator of the built-in model's tasks |
//! | [`sessions`] | tasks played against a model, and judged |
//! | [`stress`], [`eval`] | sessions that must not break, answers that must be right |
//! | [`interval`] | what a count says about a rate |
//! | [`matrix`] | every known bug and fault against every instrument |
//! | [`verify`] | the proof of a model's steps |
//! | [`cli`], [`commands`], [`report`], [`terminal`] | the command line |
//! | [`engine`] | flags to a running engine |
//!
//! The model is reached only through [`flashlane::engine::Generate`].
#![forbid(unsafe_code)]

pub mod chat;
pub mod cli;
pub mod commands;
pub mod dsml;
pub mod engine;
pub mod eval;
pub mod generation;
pub mod http;
mod ids;
pub mod interval;
pub mod matrix;
pub mod op;
pub mod openai;
pub mod report;
pub mod sessions;
pub mod stress;
pub mod tasks;
pub mod terminal;
pub mod verify;
