//! One request inside the engine, from admission to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc::Sender;

use super::api::{EngineError, Event, FinishReason, GenerateRequest, Logprobs, Token, Usage};
use super::inputs::{Segment, Tokens};
use crate::cache::Sequence;
use crate::ops::BLOCK_TOKENS;

/// The way to a request's reader, and the request's place among those that the engine has taken on. Ends once: whoever
/// drops it without an end tells the reader that the engine is gone, so no path can leave a reader without a word.
#[derive(Debug)]
pub(super) struct Reader {
    events: Sender<Event>,
    taken: Arc<AtomicUsize>,
    ended: bool,
}

impl Reader {
    /// `taken` already counts the request.
    pub(super) fn new(events: Sender<Event>, taken: Arc<AtomicUsize>) -> Self {
        Self { events, taken, ended: false }
    }

    pub(super) fn gone(&self) -> bool {
        self.events.is_closed()
    }

    /// The place is free before the reader knows, so that it may ask again at once.
    pub(super) fn end(&mut self, event: Event) {
        if !self.ended {
            self.ended = true;
            self.taken.fetch_sub(1, Ordering::AcqRel);
            self.send(event);
        }
    }

    /// The queue holds every event that a request can have, so the only failure is a reader that has gone, and that is
    /// noticed before the next round.
    fn send(&self, event: Event) {
        let _gone = self.events.try_send(event);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end(Event::Failed(EngineError::Dead("the engine thread has ended".to_owned())));
    }
}

/// A queued request.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) request: GenerateRequest,
    pub(super) reader: Reader,
}

/// A request with pages.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) id: u64,
    pub(super) request: GenerateRequest,
    pub(super) reader: Reader,
    pub(super) sequence: Sequence,
    /// Tokens whose rows are in the cache once the steps launched so far have run.
    pub(super) len: usize,
    /// Tokens that the reader has.
    pub(super) generated: usize,
}

impl Active {
    /// The reader has gone.
    pub(super) fn abandoned(&self) -> bool {
        self.reader.gone()
    }

    /// Prefill blocks to go.
    pub(super) fn blocks_left(&self) -> usize {
        self.request.prompt.len().saturating_sub(self.len).div_ceil(BLOCK_TOKENS)
    }

    /// Its prompt is in the cache, and the token after that is not its last.
    pub(super) fn decodes(&self, limit: usize) -> bool {
        self.blocks_left() == 0 && !self.ends_at(self.len, limit)
    }

    /// The request can have no token after the one at `position`.
    fn ends_at(&self, position: usize, limit: usize) -> bool {
        position + 1 >= limit.min(self.request.prompt.len().saturating_add(self.request.max_tokens))
    }

    /// Its newest token in a decode step.
    pub(super) fn next_token(&self) -> Segment<'_> {
        let sample = Some(&self.request.sampling);
        Segment { sequence: &self.sequence, start: self.len, tokens: Tokens::Carried, sample }
    }

    /// Emits the token at `position`; says why the request ends if it does.
    pub(super) fn emit(
        &mut self,
        position: usize,
        id: u32,
        logprobs: Option<Logprobs>,
        limit: usize,
    ) -> Option<FinishReason> {
        self.generated += 1;
        self.reader.send(Event::Token(Token { id, logprobs }));
        if self.request.stop_token_ids.contains(&id) {
            Some(FinishReason::Stop)
        } else if self.ends_at(position, limit) {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    pub(super) fn finish(&mut self, reason: FinishReason) {
        let prompt_tokens = self.request.prompt.len();
        let usage = Usage { prompt_tokens, cached_tokens: 0, completion_tokens: self.generated };
        self.reader.end(Event::Finished { reason, usage });
    }

    pub(super) fn fail(&mut self, error: EngineError) {
        self.reader.end(Event::Failed(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_told_one_end_and_its_place_is_given_back_once() {
        let taken = Arc::new(AtomicUsize::new(2));
        let (sender, mut events) = tokio::sync::mpsc::channel(4);
        let mut reader = Reader::new(sender, Arc::clone(&taken));
        reader.end(Event::Failed(EngineError::Draining));
        reader.end(Event::Failed(EngineError::Internal("again".to_owned())));
        drop(reader);
        assert_eq!(events.blocking_recv(), Some(Event::Failed(EngineError::Draining)));
        assert_eq!(events.blocking_recv(), None);

        let (sender, mut events) = tokio::sync::mpsc::channel(4);
        drop(Reader::new(sender, Arc::clone(&taken)));
        assert!(matches!(events.blocking_recv(), Some(Event::Failed(EngineError::Dead(_)))));
        assert_eq!(taken.load(Ordering::Acquire), 0);
    }
}
