//! A raw continuation: text as spelled, no parsing.

use std::sync::Arc;

use flashlane::engine::{FinishReason, Token};

use super::decoder::{Decoder, Delta, Finish, Step, TokenLogprob};
use super::stops::StopStrings;
use crate::chat::{ChatTokenizer, Utf8Stream};

#[derive(Debug)]
pub struct TextDecoder {
    tokenizer: Arc<ChatTokenizer>,
    utf8: Utf8Stream,
    stops: StopStrings,
    logprobs: Vec<TokenLogprob>,
}

impl TextDecoder {
    pub fn new(tokenizer: Arc<ChatTokenizer>, stops: Vec<String>) -> Self {
        let stops = StopStrings::new(stops);
        Self { tokenizer, utf8: Utf8Stream::default(), stops, logprobs: Vec::new() }
    }

    fn emit(&mut self, text: String) -> Vec<Delta> {
        if text.is_empty() {
            return Vec::new();
        }
        vec![Delta::Text { text, logprobs: std::mem::take(&mut self.logprobs) }]
    }
}

impl Decoder for TextDecoder {
    fn token(&mut self, token: &Token) -> Step {
        let bytes = self.tokenizer.visible_bytes(token.id);
        if !bytes.is_empty() {
            let entry = token.logprobs.as_ref().map(|l| TokenLogprob::new(token.id, l, &self.tokenizer));
            self.logprobs.extend(entry);
        }
        let mut text = String::new();
        self.utf8.push(bytes, &mut text);
        let text = self.stops.push(&text);
        let finish = self.stops.hit().then_some(Finish::Stop);
        Step { deltas: self.emit(text), finish }
    }

    fn end(&mut self, reason: FinishReason) -> Step {
        let mut rest = String::new();
        self.utf8.finish(&mut rest);
        let mut text = self.stops.push(&rest);
        let finish = if self.stops.hit() { Finish::Stop } else { reason.into() };
        text += &self.stops.flush();
        Step { deltas: self.emit(text), finish: Some(finish) }
    }
}
