//! A chat answer: control tokens structure it, text between them is parsed for tool calls and stop strings.

use std::sync::Arc;

use flashlane::engine::{FinishReason, Token};

use super::decoder::{Decoder, Delta, Finish, Step, TokenLogprob};
use super::stops::StopStrings;
use crate::chat::{ChatTokenizer, Control, Symbol, Utf8Stream};
use crate::dsml::{Config, Counters, Ending, Output, Parser, Section};

#[derive(Debug)]
pub struct ChatDecoder {
    tokenizer: Arc<ChatTokenizer>,
    utf8: Utf8Stream,
    parser: Parser,
    stops: StopStrings,
    /// The end token is text like any other control token: skipped.
    ignore_eos: bool,
    /// The answer ends with its first call.
    single_call: bool,
    reasoning_tokens: usize,
    /// Of content tokens whose text is still held back.
    logprobs: Vec<TokenLogprob>,
}

impl ChatDecoder {
    pub fn new(tokenizer: Arc<ChatTokenizer>, parser: Config, stops: Vec<String>) -> Self {
        Self {
            tokenizer,
            utf8: Utf8Stream::default(),
            parser: Parser::new(parser),
            stops: StopStrings::new(stops),
            ignore_eos: false,
            single_call: false,
            reasoning_tokens: 0,
            logprobs: Vec::new(),
        }
    }

    #[must_use]
    pub fn ignore_eos(mut self, ignore: bool) -> Self {
        self.ignore_eos = ignore;
        self
    }

    #[must_use]
    pub fn single_call(mut self, single: bool) -> Self {
        self.single_call = single;
        self
    }

    fn read(&mut self, id: u32) {
        let mut text = String::new();
        match self.tokenizer.symbol(id) {
            Symbol::Text(bytes) => self.utf8.push(bytes, &mut text),
            Symbol::Control(_) => self.utf8.finish(&mut text),
            Symbol::Silent => {}
        }
        self.parser.text(&text);
        if let Symbol::Control(control) = self.tokenizer.symbol(id)
            && !(self.ignore_eos && control == Control::Eos)
        {
            self.parser.control(control);
        }
    }

    fn step(&mut self) -> Step {
        let mut step = Step::default();
        for output in self.parser.take() {
            let ends_call = matches!(output, Output::CallEnd { .. });
            self.output(output, &mut step.deltas);
            if self.stops.hit() {
                self.logprobs.clear();
                step.finish = Some(Finish::Stop);
                break;
            }
            if ends_call && self.single_call {
                step.finish = Some(Finish::ToolCalls);
                break;
            }
        }
        step
    }

    fn output(&mut self, output: Output, deltas: &mut Vec<Delta>) {
        match output {
            Output::Content(text) => {
                let text = self.stops.push(&text);
                self.text(text, deltas);
            }
            other => {
                let held = self.stops.flush();
                self.text(held, deltas);
                deltas.push(match other {
                    Output::Reasoning(text) | Output::Content(text) => Delta::Reasoning(text),
                    Output::CallStart { index, name } => Delta::CallStart { index, name },
                    Output::Arguments { index, fragment } => Delta::Arguments { index, fragment },
                    Output::CallEnd { index, repeated_key } => Delta::CallEnd { index, repeated_key },
                });
            }
        }
    }

    fn text(&mut self, text: String, deltas: &mut Vec<Delta>) {
        if !text.is_empty() {
            deltas.push(Delta::Text { text, logprobs: std::mem::take(&mut self.logprobs) });
        }
    }
}

impl Decoder for ChatDecoder {
    fn token(&mut self, token: &Token) -> Step {
        let is_text = matches!(self.tokenizer.symbol(token.id), Symbol::Text(_));
        match self.parser.section() {
            Section::Reasoning => self.reasoning_tokens += 1,
            Section::Content if is_text => {
                let entry = token.logprobs.as_ref().map(|l| TokenLogprob::new(token.id, l, &self.tokenizer));
                self.logprobs.extend(entry);
            }
            Section::Content | Section::Markup => {}
        }
        self.read(token.id);
        self.step()
    }

    fn end(&mut self, reason: FinishReason) -> Step {
        let mut text = String::new();
        self.utf8.finish(&mut text);
        self.parser.text(&text);
        let ending = self.parser.finish();
        let mut step = self.step();
        if step.finish.is_none() {
            let held = self.stops.flush();
            self.text(held, &mut step.deltas);
            step.finish = Some(finish(reason, ending));
        }
        step
    }

    fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    fn counters(&self) -> Counters {
        self.parser.counters()
    }
}

/// A client runs calls when it reads `tool_calls`, so neither a cut call nor a cut list of calls may be announced that way.
fn finish(reason: FinishReason, ending: Ending) -> Finish {
    match ending {
        Ending { cut: true, .. } => Finish::Length,
        Ending { calls: 0, .. } => reason.into(),
        Ending { open: true, .. } if reason == FinishReason::Length => Finish::Length,
        Ending { .. } => Finish::ToolCalls,
    }
}
