//! The prompt layout against vectors of the reference encoder (`deepseek-recipe` 0.2.0), the tokenizer, and the terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may panic.

mod golden;
mod layout;
#[path = "../support/mod.rs"]
mod support;
mod tasks;
mod terminal;
mod tokens;
