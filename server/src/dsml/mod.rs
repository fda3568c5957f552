//! The output parser: token ids' text and control tokens in; reasoning, content and tool calls out.
//!
//! Markup begins with a control token, never with text, so what the model merely spells stays content. The parser reads
//! one character at a time; how the text was cut into events cannot change the answer. It never emits arguments that
//! are not a JSON object.

mod arguments;
mod call;
mod parser;
mod schema;
mod tag;
mod values;

pub use parser::{Config, Ending, Parser, Section, Start};
pub use schema::ToolSchemas;

/// A piece of the answer, in order. Neighbouring texts of one kind may be joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Reasoning(String),
    Content(String),
    /// The name is whole; indexes count from 0 without gap.
    CallStart {
        index: usize,
        name: String,
    },
    Arguments {
        index: usize,
        fragment: String,
    },
    CallEnd {
        index: usize,
        /// A parameter came twice: the fragments hold both, and JSON readers keep the last.
        repeated_key: bool,
    },
}

/// How often the model's output was not what the format asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Markup or a value that the format does not allow, or a call that was cut.
    pub malformed_calls: u64,
    /// Reasoning that ended without its end token.
    pub implicit_think_end: u64,
    /// Text held back for a marker that never came.
    pub held_flush: u64,
    /// Text behind a tool block.
    pub text_after_block: u64,
    /// Calls of functions that the client did not declare.
    pub unknown_tool: u64,
}

impl Counters {
    /// The counters by name, for metrics.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("malformed_calls", self.malformed_calls),
            ("implicit_think_end", self.implicit_think_end),
            ("held_flush", self.held_flush),
            ("text_after_block", self.text_after_block),
            ("unknown_tool", self.unknown_tool),
        ]
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.malformed_calls += other.malformed_calls;
        self.implicit_think_end += other.implicit_think_end;
        self.held_flush += other.held_flush;
        self.text_after_block += other.text_after_block;
        self.unknown_tool += other.unknown_tool;
    }
}
