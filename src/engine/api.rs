//! What the engine offers to whoever drives it: the HTTP server, the terminal chat, the tests.
//!
//! The engine knows token ids only. Text (stop strings, tool calls, UTF-8) belongs to its callers. A request handle ends
//! exactly once: with [`Event::Finished`] or [`Event::Failed`], or by being dropped, which aborts the request.

use tokio::sync::mpsc;

use crate::instrument::{Report, SampledRows};

/// How the next token is chosen. `Default` is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 means greedy.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 means off.
    pub top_p: f32,
    /// Keep the k most likely tokens; 0 means off.
    pub top_k: u32,
    /// Tokens less likely than `min_p` times the most likely one are dropped; 0 means off.
    pub min_p: f32,
    /// Key of the counter-based generator: the draw at a position depends on `(seed, position)` alone.
    pub seed: u64,
    /// Log-probabilities of this many most likely tokens with each token (at most 20); `None`: no log-probabilities.
    pub top_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0, top_logprobs: None }
    }
}

/// One sequence to continue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateRequest {
    /// Prompt token ids; must not be empty, and every id must be below the vocabulary size.
    pub prompt: Vec<u32>,
    /// At most this many tokens are generated; at least 1.
    pub max_tokens: usize,
    /// The request finishes with [`FinishReason::Stop`] after emitting one of these.
    pub stop_token_ids: Vec<u32>,
    pub sampling: SamplingParams,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was emitted.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Natural log-probability of the emitted token.
    pub chosen: f32,
    /// The most likely tokens, best first (ties: the smaller id).
    pub top: Vec<(u32, f32)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub id: u32,
    pub logprobs: Option<Logprobs>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Prompt tokens whose cache rows were restored instead of computed.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Token(Token),
    Finished {
        reason: FinishReason,
        usage: Usage,
    },
    /// This request failed; others go on.
    Failed(EngineError),
}

/// Why the engine refused or ended a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("the queue is full: {queued} requests are waiting, at most {limit} may")]
    QueueFull { queued: usize, limit: usize },
    #[error(
        "this model's maximum context length is {limit} tokens; the prompt has {prompt} and {max_tokens} were asked for"
    )]
    ContextLength { prompt: usize, max_tokens: usize, limit: usize },
    #[error("{field}: {message}")]
    Invalid { field: &'static str, message: String },
    #[error("the engine is shutting down")]
    Draining,
    #[error("the engine has stopped: {0}")]
    Dead(String),
    #[error("the logits of this request are not finite at position {position}")]
    NonFinite { position: usize },
    #[error("out of cache pages: the request needs {needed}, the pool has {total}")]
    OutOfPages { needed: usize, total: usize },
    #[error("{0}")]
    Internal(String),
}

/// The stream of one request's events. Dropping it aborts the request within two steps.
#[derive(Debug)]
pub struct RequestHandle {
    pub id: u64,
    pub events: mpsc::Receiver<Event>,
}

/// Counters and gauges, for `/metrics`, `/health` and the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub running: usize,
    pub waiting: usize,
    pub accepted: u64,
    pub finished: u64,
    pub aborted: u64,
    pub failed: u64,
    pub rejected: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub steps: u64,
    /// Of the steps, those that were a block of a prompt.
    pub prefill_blocks: u64,
    /// Most prefill blocks so far that a decode step has waited for; at most 1.
    pub blocks_between_decodes: u64,
    /// Rows computed for requests that had ended meanwhile; at most one a request.
    pub discarded_rows: u64,
    /// Free and total pages of 256 tokens (compressed and index rows).
    pub free_blocks: usize,
    pub total_blocks: usize,
    /// Free and total pages of 64 window rows.
    pub free_windows: usize,
    pub total_windows: usize,
    pub free_slots: usize,
    pub total_slots: usize,
}

/// What the server needs of an engine; tests drive the server with a scripted one.
pub trait Generate: Send + Sync + std::fmt::Debug {
    /// Queues a request, or says at once why not. Never blocks. The event queue of a request holds all the events that
    /// it can ever have, so a slow reader costs the engine nothing.
    ///
    /// # Errors
    /// [`EngineError`] in words; nothing of a refused request remains.
    fn submit(&self, request: GenerateRequest) -> Result<RequestHandle, EngineError>;

    fn stats(&self) -> Stats;

    /// What the instruments have seen; `None` without any.
    fn instruments(&self) -> Option<Report> {
        None
    }

    /// Tokens of steps that the differential has run again.
    fn sampled(&self) -> SampledRows {
        SampledRows::default()
    }

    /// The longest sequence (prompt and output together) that a request may reach.
    fn max_model_len(&self) -> usize;

    /// Refuses new requests from now on; running ones go on to their end.
    fn drain(&self);

    /// `None` while the engine thread lives; afterwards, why it ended.
    fn dead(&self) -> Option<String>;
}
