//! A short notation for model outputs: `¦` is the sentinel token, `§` the token `</think>`, `¤` the token `<think>`,
//! `¶` the end token. Everything else is text that ordinary tokens spell.

use flashlane_server::chat::Control;
use flashlane_server::dsml::{Config, Counters, Ending, Output, Parser, Start, ToolSchemas};
use serde_json::{Map, Value, json};

pub(crate) fn control(c: char) -> Option<Control> {
    Some(match c {
        '¦' => Control::Dsml,
        '§' => Control::ThinkEnd,
        '¤' => Control::ThinkStart,
        '¶' => Control::Eos,
        _ => return None,
    })
}

/// What a client would have put together.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    /// Name and arguments text.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) ended: Vec<bool>,
    pub(crate) ending: Ending,
    pub(crate) counters: Counters,
}

pub(crate) fn schemas() -> ToolSchemas {
    let object = |value: Value| value.as_object().cloned().unwrap_or_default();
    let tools: Vec<(&str, Map<String, Value>)> = vec![
        (
            "f",
            object(json!({"type": "object", "properties": {
                "a": {"type": "string"},
                "n": {"type": "integer"},
                "b": {"type": ["boolean", "null"]},
                "u": {"anyOf": [{"type": "boolean"}, {"type": "object"}]},
            }})),
        ),
        ("g", Map::new()),
    ];
    ToolSchemas::new(tools.iter().map(|(name, schema)| (*name, schema)))
}

/// Parses `pieces`, text or single control characters, in order.
pub(crate) fn parse_pieces<'a>(
    start: Start,
    tools: ToolSchemas,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Answer {
    let mut parser = Parser::new(Config { start, tools });
    let mut answer = Answer::default();
    for piece in pieces {
        match piece.chars().next().and_then(control) {
            Some(control) => parser.control(control),
            None => parser.text(piece),
        }
        answer.collect(parser.take());
    }
    answer.ending = parser.finish();
    answer.collect(parser.take());
    answer.counters = parser.counters();
    answer
}

/// Cuts around control characters, and nowhere else.
pub(crate) fn pieces(output: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, c) in output.char_indices().filter(|(_, c)| control(*c).is_some()) {
        pieces.push(&output[start..at]);
        pieces.push(&output[at..at + c.len_utf8()]);
        start = at + c.len_utf8();
    }
    pieces.push(&output[start..]);
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

pub(crate) fn parse(start: Start, output: &str) -> Answer {
    parse_pieces(start, schemas(), pieces(output))
}

impl Answer {
    fn collect(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Reasoning(text) => self.reasoning += &text,
                Output::Content(text) => self.content += &text,
                Output::CallStart { index, name } => {
                    assert_eq!(index, self.calls.len(), "indexes have no gap");
                    self.calls.push((name, String::new()));
                    self.ended.push(false);
                }
                Output::Arguments { index, fragment } => {
                    assert_eq!(index + 1, self.calls.len(), "fragments belong to the last call");
                    self.calls[index].1 += &fragment;
                }
                Output::CallEnd { index, .. } => {
                    assert!(!std::mem::replace(&mut self.ended[index], true), "a call ends once");
                }
            }
        }
    }
}
