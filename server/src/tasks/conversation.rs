//! One conversation as the server renders it, written token by token.
//!
//! The writer keeps, beside the ids, what every consumer needs: a loss class for each token, the spans that count as answers with
//! their retrieval distance, and where each message begins and ends. It follows the official prompt layout; it does not choose
//! what is said.

use std::ops::Range;

use super::lexicon::{ASSISTANT, BOS, END_THINK, EOS, Ids, Lexicon, THINK, USER};

/// What a token is to the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Prompt text: hardly predictable.
    Other = 0,
    /// Markup and fixed wording that the model writes.
    Frame = 1,
    /// A secret, a name, or another choice that only the context decides.
    Hard = 2,
    /// Filling after the end of a record.
    Pad = 3,
}

/// What an answer span tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum SpanKind {
    Recall,
    Trail,
    CallName,
    CallCode,
    Finish,
    Echo,
    Unknown,
    Topic,
    Tool,
    Argument,
    Chat,
    Rule,
}

/// An answer: tokens `range`, looked up `distance` tokens back (0 where nothing is looked up).
#[derive(Clone, Debug)]
pub struct Span {
    pub range: Range<usize>,
    pub kind: SpanKind,
    pub distance: usize,
}

/// A text in both positions it can take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// At the start of a value.
    pub plain: Ids,
    /// After a word, with the space between.
    pub spaced: Ids,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Tool,
    Assistant,
}

/// A call inside an assistant turn: name and parameters as token ranges.
#[derive(Clone, Debug)]
pub struct Call {
    pub name: Range<usize>,
    pub params: Vec<Param>,
}

#[derive(Clone, Debug)]
pub struct Param {
    pub name: Range<usize>,
    pub value: Range<usize>,
    pub is_string: bool,
}

/// One message. `content` excludes markers and reasoning.
#[derive(Clone, Debug)]
pub struct Turn {
    pub role: Role,
    pub content: Range<usize>,
    pub reasoning: Range<usize>,
    pub call: Option<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Chat,
    /// Reasoning in every assistant turn: how prompts with tools are rendered.
    Thinking,
}

#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    pub lexicon: &'a Lexicon,
    pub mode: Mode,
    pub ids: Ids,
    pub classes: Vec<u8>,
    pub spans: Vec<Span>,
    pub turns: Vec<Turn>,
    /// The JSON line of each declared tool.
    pub schemas: Vec<Range<usize>>,
}

impl<'a> Conversation<'a> {
    pub fn new(lexicon: &'a Lexicon, mode: Mode) -> Self {
        Self {
            lexicon,
            mode,
            ids: vec![BOS],
            classes: vec![Class::Other as u8],
            spans: Vec::new(),
            turns: Vec::new(),
            schemas: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Never: a conversation begins with its BOS.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn push(&mut self, ids: &[u16], class: Class) {
        self.ids.extend_from_slice(ids);
        self.classes.resize(self.ids.len(), class as u8);
    }

    /// Writes a template of `wording` as prompt text.
    pub fn fill(&mut self, template: &str, values: &[&[u16]]) {
        self.fill_as(template, values, Class::Other, Class::Other);
    }

    pub fn fill_as(&mut self, template: &str, values: &[&[u16]], fixed: Class, value: Class) {
        for (i, piece) in self.lexicon.template(template).iter().enumerate() {
            if let Some(ids) = i.checked_sub(1).and_then(|i| values.get(i)) {
                self.push(ids, value);
            }
            self.push(piece, fixed);
        }
    }

    /// Writes an answer and records it; `source` is where it was last seen.
    pub fn answer(&mut self, ids: &[u16], kind: SpanKind, source: Option<usize>) {
        let start = self.len();
        self.push(ids, Class::Hard);
        let distance = source.map_or(0, |source| start.saturating_sub(source));
        self.spans.push(Span { range: start..self.len(), kind, distance });
    }

    pub fn open(&mut self, role: Role) {
        if matches!(role, Role::User | Role::Tool) {
            self.push(&[USER], Class::Other);
        }
        if role == Role::Tool {
            self.push(&self.lexicon.frame.result_open, Class::Other);
        }
        let here = self.len();
        self.turns.push(Turn { role, content: here..here, reasoning: here..here, call: None });
    }

    pub fn close(&mut self) {
        let end = self.len();
        let Some(turn) = self.turns.last_mut() else { return };
        turn.content.end = end;
        if turn.role == Role::Tool {
            self.push(&self.lexicon.frame.result_close, Class::Other);
        }
    }

    /// Starts an assistant turn; `reason` is the template of its reasoning in thinking mode.
    pub fn reply(&mut self, reason: &str, values: &[&[u16]]) {
        let thinking = self.mode == Mode::Thinking;
        self.push(&[ASSISTANT, if thinking { THINK } else { END_THINK }], Class::Other);
        let start = self.len();
        if thinking {
            self.fill_as(reason, values, Class::Frame, Class::Hard);
        }
        let reasoning = start..self.len();
        if thinking {
            self.push(&[END_THINK], Class::Frame);
        }
        let here = self.len();
        self.turns.push(Turn { role: Role::Assistant, content: here..here, reasoning, call: None });
    }

    /// Ends an assistant turn.
    pub fn end_reply(&mut self) {
        self.end_content();
        self.push(&[EOS], Class::Hard);
        if let Some(span) = self.spans.last_mut().filter(|span| span.range.end + 1 == self.ids.len()) {
            span.range.end += 1;
        }
    }

    fn end_content(&mut self) {
        let end = self.len();
        if let Some(turn) = self.turns.last_mut() {
            turn.content.end = end;
        }
    }

    /// Starts a tool call with `name`; parameters follow.
    pub fn begin_call(&mut self, name: &[u16], kind: SpanKind, source: Option<usize>) {
        self.end_content();
        let frame = &self.lexicon.frame;
        self.push(&frame.call_open, Class::Frame);
        self.push(&frame.invoke_open, Class::Frame);
        self.answer(name, kind, source);
        let end = self.len();
        self.push(&frame.name_close, Class::Frame);
        if let Some(turn) = self.turns.last_mut() {
            turn.call = Some(Call { name: end - name.len()..end, params: Vec::new() });
        }
    }

    pub fn param(
        &mut self,
        name: &[u16],
        value: &[u16],
        is_string: bool,
        kind: SpanKind,
        source: Option<usize>,
    ) {
        let frame = &self.lexicon.frame;
        self.push(&frame.param_open, Class::Frame);
        let start = self.len();
        self.push(name, Class::Hard);
        let name = start..self.len();
        self.push(if is_string { &frame.string_value } else { &frame.json_value }, Class::Frame);
        let start = self.len();
        self.answer(value, kind, source);
        let value = start..self.len();
        self.push(&frame.param_close, Class::Frame);
        if let Some(call) = self.turns.last_mut().and_then(|turn| turn.call.as_mut()) {
            call.params.push(Param { name, value, is_string });
        }
    }

    pub fn end_call(&mut self) {
        self.push(&self.lexicon.frame.call_close, Class::Frame);
        self.push(&[EOS], Class::Frame);
    }
}
