//! An item as the requests of a client, with what each must be answered.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::answer::Answer;
use crate::tasks::conversation::{Span, SpanKind};
use crate::tasks::export;
use crate::tasks::items::{Shape, item};
use crate::tasks::lexicon::Lexicon;

/// A session to play.
#[derive(Clone, Debug)]
pub struct Script {
    pub index: u64,
    pub thinking: bool,
    pub turns: Vec<Expected>,
    messages: Vec<Value>,
    tools: Option<Value>,
    no_tools: bool,
    spans: Vec<Span>,
}

/// A turn of the model.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Messages before it.
    pub messages: usize,
    /// Tokens before it, if all before it was said as expected.
    pub start: usize,
    /// Its tokens, the end token included.
    pub ids: Vec<u32>,
    /// Name and arguments of the call.
    pub call: Option<(String, Value)>,
    pub content: String,
}

/// What a token of the expected answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub kind: SpanKind,
    /// Tokens back to where it was last read; 0 where nothing is looked up.
    pub distance: usize,
}

impl Script {
    /// Item `index` of `seed`.
    ///
    /// # Errors
    /// The generator made something that is not what it exports.
    pub fn new(lexicon: &Lexicon, shape: Shape, seed: u64, index: u64) -> Result<Self> {
        let item = item(lexicon, shape, seed, index);
        let exported = export::item(&item, shape, seed, index)?;
        let turns = exported["turns"].as_array().context("an item without turns")?;
        let ids = &item.conv.ids;
        let turns = turns.iter().map(|turn| expected(turn, ids)).collect::<Result<_>>()?;
        Ok(Self {
            index,
            thinking: shape.thinking,
            turns,
            messages: exported["messages"].as_array().cloned().unwrap_or_default(),
            tools: exported.get("tools").cloned(),
            no_tools: exported["tool_choice"] == "none",
            spans: item.conv.spans.clone(),
        })
    }

    /// The chat request of a turn; `said` is what the model answered before.
    pub fn request(&self, turn: usize, said: &[Answer]) -> Map<String, Value> {
        let before = self.turns.get(turn).map_or(self.messages.len(), |turn| turn.messages);
        let mut said = said.iter();
        let messages = self.messages[..before.min(self.messages.len())].iter().map(|message| {
            let own = if message["role"] == "assistant" { said.next() } else { None };
            own.map_or_else(|| message.clone(), |answer| answer.message(message))
        });
        let mut body = Map::new();
        body.insert("messages".into(), messages.collect());
        if let Some(tools) = &self.tools {
            body.insert("tools".into(), tools.clone());
        }
        if self.no_tools {
            body.insert("tool_choice".into(), "none".into());
        }
        if self.thinking {
            body.insert("chat_template_kwargs".into(), json!({"thinking": true}));
        }
        body
    }

    /// A code or value that the item asks for has the same character twice in a row.
    pub fn doubled(&self) -> bool {
        let value = |kind| matches!(kind, SpanKind::Recall | SpanKind::Trail | SpanKind::CallCode);
        let tokens: HashMap<usize, u32> =
            self.turns.iter().flat_map(|turn| (turn.start..).zip(turn.ids.iter().copied())).collect();
        let spans = self.spans.iter().filter(|span| value(span.kind));
        spans.flat_map(|span| span.range.clone().skip(1)).any(|position| {
            tokens.contains_key(&position) && tokens.get(&position) == tokens.get(&(position - 1))
        })
    }

    /// What the token at this position is, in a sequence where all before it was said as expected.
    pub fn place(&self, position: usize) -> Option<Place> {
        let span = self.spans.iter().find(|span| span.range.contains(&position))?;
        Some(Place { kind: span.kind, distance: span.distance })
    }
}

fn expected(turn: &Value, ids: &[u16]) -> Result<Expected> {
    let number = |field: &str| {
        let number = turn[field].as_u64().and_then(|n| usize::try_from(n).ok());
        number.with_context(|| format!("a turn without {field}"))
    };
    let (start, end) = (number("start")?, number("end")?);
    let call = turn
        .get("call")
        .map(|call| (call["name"].as_str().unwrap_or_default().to_owned(), call["arguments"].clone()));
    let ids = ids.get(start..end).context("a turn beyond its tokens")?;
    Ok(Expected {
        messages: number("messages")?,
        start,
        ids: ids.iter().map(|&id| id.into()).collect(),
        call,
        content: turn["content"].as_str().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::Script;
    use crate::tasks::items::{Kind, Shape};
    use crate::tasks::lexicon::Lexicon;

    #[test]
    fn doubled_characters_are_found() {
        let lexicon = Lexicon::load().unwrap();
        let mut doubled = 0;
        for index in 0..200 {
            let shape = Shape { kind: Kind::Recall, ctx: 100, rounds: 1, thinking: false };
            let script = Script::new(&lexicon, shape, 5, index).unwrap();
            let code: Vec<char> = script.turns[0].content.chars().collect();
            assert_eq!(script.doubled(), code.windows(2).any(|pair| pair[0] == pair[1]), "{code:?}");
            doubled += usize::from(script.doubled());
        }
        // Five pairs on average, each the same in 1 of 36 cases: 26, within four standard deviations.
        assert!((8..=45).contains(&doubled), "{doubled}");
        let walk = Shape { kind: Kind::Walk, ctx: 300, rounds: 3, thinking: false };
        let walks = (0..40).map(|index| Script::new(&lexicon, walk, 5, index).unwrap());
        assert!((5..=30).contains(&walks.filter(Script::doubled).count()));
    }
}
