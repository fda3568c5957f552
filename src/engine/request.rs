//! One request inside the engine, from admission to its end.

use tokio::sync::mpsc::Sender;

use super::api::{EngineError, Event, FinishReason, GenerateRequest, Logprobs, Token, Usage};
use crate::cache::Sequence;

/// A queued request.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) request: GenerateRequest,
    pub(super) events: Sender<Event>,
}

/// A request with pages.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) id: u64,
    pub(super) request: GenerateRequest,
    pub(super) events: Sender<Event>,
    pub(super) sequence: Sequence,
    /// Tokens whose rows are in the cache.
    pub(super) len: usize,
    /// The newest token, not yet in the cache; `None` while the prompt is being prefilled.
    pub(super) newest: Option<u32>,
    pub(super) generated: usize,
}

impl Active {
    /// The reader has gone.
    pub(super) fn abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Emits a token; says why the request ends if it does.
    pub(super) fn emit(&mut self, id: u32, logprobs: Option<Logprobs>, limit: usize) -> Option<FinishReason> {
        self.generated += 1;
        self.newest = Some(id);
        self.send(Event::Token(Token { id, logprobs }));
        if self.request.stop_token_ids.contains(&id) {
            Some(FinishReason::Stop)
        } else if self.generated >= self.request.max_tokens || self.len + 1 >= limit {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    pub(super) fn finish(&self, reason: FinishReason) {
        let prompt_tokens = self.request.prompt.len();
        let usage = Usage { prompt_tokens, cached_tokens: 0, completion_tokens: self.generated };
        self.send(Event::Finished { reason, usage });
    }

    pub(super) fn fail(&self, error: EngineError) {
        self.send(Event::Failed(error));
    }

    /// The queue holds every event that a request can have, so the only failure is a reader that has gone, and that is
    /// noticed before the next step.
    fn send(&self, event: Event) {
        let _gone = self.events.try_send(event);
    }
}
