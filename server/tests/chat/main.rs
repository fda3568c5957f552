//! The prompt layout against vectors of the reference encoder (`deepseek-recipe` 0.2.0), the tokenizer, and the terminal.

mod layout;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod tokens;
