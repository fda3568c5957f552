//! A streamed answer as server-sent events.
//!
//! Each event is one chunk; a quiet stream gets a comment by the wall clock, also while the prompt is read and while
//! text is held back. After an error event there is no `[DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::Value;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::generate::Answer;
use crate::generation::Progress;
use crate::openai::{ApiError, StreamOptions, usage_json};

struct Stream {
    answer: Answer,
    options: StreamOptions,
    queue: VecDeque<Bytes>,
    keep_alive: Interval,
    done: bool,
}

pub(super) fn respond(mut answer: Answer, choices: usize, options: StreamOptions) -> Response {
    let period = answer.app.options.keep_alive;
    let mut keep_alive = interval_at(Instant::now() + period, period);
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let open: Vec<Value> = (0..choices).filter_map(|choice| answer.format.open(choice)).collect();
    let mut stream = Stream { answer, options, queue: VecDeque::new(), keep_alive, done: false };
    for chunk in open {
        stream.chunk(chunk);
    }
    let body = futures::stream::unfold(stream, |mut stream| async {
        let bytes = stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), stream))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would hold events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.queue.pop_front() {
                self.keep_alive.reset();
                return Some(bytes);
            }
            if self.done {
                return None;
            }
            let app = Arc::clone(&self.answer.app);
            tokio::select! {
                progress = self.answer.generation.next() => match progress {
                    Some(Ok(progress)) => self.progress(progress),
                    Some(Err(error)) => self.fail(&error.into()),
                    None => self.end(),
                },
                () = app.drain.cut_off() => self.fail(&ApiError::unavailable("the server is shutting down")),
                _ = self.keep_alive.tick() => return Some(Bytes::from_static(b": keep-alive\n\n")),
            }
        }
    }

    fn progress(&mut self, progress: Progress) {
        for delta in progress.deltas {
            if let Some(chunk) = self.answer.format.delta(progress.choice, delta) {
                self.chunk(chunk);
            }
        }
        if let Some(finish) = progress.finish {
            let chunk = self.answer.format.finish(progress.choice, finish);
            self.chunk(chunk);
        }
    }

    fn end(&mut self) {
        if self.options.include_usage {
            let chunk = self.answer.format.usage(self.answer.generation.usage());
            self.event(&chunk);
        }
        self.queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.done = true;
    }

    fn fail(&mut self, error: &ApiError) {
        tracing::warn!(message = error.message, "a stream failed");
        self.event(&error.to_json());
        self.done = true;
    }

    fn chunk(&mut self, mut chunk: Value) {
        if self.options.continuous_usage {
            chunk["usage"] = usage_json(self.answer.generation.usage());
        } else if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        self.event(&chunk);
    }

    fn event(&mut self, value: &Value) {
        self.queue.push_back(Bytes::from(format!("data: {value}\n\n")));
    }
}
