//! What all routes share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashlane::engine::{Generate, SamplingParams};

use super::drain::Drain;
use super::metrics::Metrics;
use crate::chat::ChatTokenizer;
use crate::openai::ApiError;

/// Limits of the HTTP side.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Any of these opens `/v1`; none means that it is open.
    pub api_keys: Vec<String>,
    pub max_connections: usize,
    pub max_body_bytes: usize,
    /// For the request line and headers.
    pub header_timeout: Duration,
    /// For the whole body.
    pub body_timeout: Duration,
    /// A client that takes nothing for so long is gone.
    pub write_timeout: Duration,
    /// Between signs of life on a quiet stream.
    pub keep_alive: Duration,
    /// How long running requests may go on after the first SIGTERM.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            max_connections: 4096,
            max_body_bytes: 32 << 20,
            header_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(60),
        }
    }
}

/// What a request gets that does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    pub thinking: bool,
    pub sampling: SamplingParams,
}

#[derive(Debug)]
pub struct App {
    pub engine: Arc<dyn Generate>,
    pub tokenizer: Arc<ChatTokenizer>,
    pub model: String,
    pub defaults: Defaults,
    pub options: ServerOptions,
    pub(super) drain: Drain,
    pub(super) metrics: Metrics,
    /// Seconds since 1970 when the server started.
    pub(super) started: u64,
}

impl App {
    pub fn new(
        engine: Arc<dyn Generate>,
        tokenizer: Arc<ChatTokenizer>,
        model: String,
        defaults: Defaults,
        options: ServerOptions,
    ) -> Self {
        let (drain, metrics) = (Drain::default(), Metrics::default());
        Self { engine, tokenizer, model, defaults, options, drain, metrics, started: now() }
    }

    /// # Errors
    /// 503 while the server shuts down or after its engine has stopped.
    pub(super) fn check_serving(&self) -> Result<(), ApiError> {
        if let Some(reason) = self.engine.dead() {
            return Err(ApiError::unavailable(format!("the engine has stopped: {reason}")));
        }
        if self.drain.is_draining() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        Ok(())
    }

    pub(super) fn check_model(&self, model: &str) -> Result<(), ApiError> {
        if model == self.model { Ok(()) } else { Err(ApiError::model_not_found(model)) }
    }
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
