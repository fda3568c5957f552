//! Which requests are in the next step. Single-threaded and without a clock: the same calls in the same order give the same
//! steps.

use std::collections::VecDeque;

use super::api::{EngineError, Event, Stats};
use super::handle::EngineConfig;
use super::inputs::{Segment, Tokens};
use super::request::{Active, Waiting};
use super::runner::{Runner, Sampled};
use crate::cache::{Caches, InProcess, Manifest, Owner, Sequence, Transfer};
use crate::model::CacheLayout;
use crate::ops::BLOCK_TOKENS;

/// Owns the device, the pages and every request. A request stays in its queue while a step runs, so that one whose step
/// fails, or panics, is still there to be told.
pub(super) struct Scheduler {
    runner: Runner,
    layout: CacheLayout,
    transfer: InProcess,
    caches: Caches,
    waiting: VecDeque<Waiting>,
    prefilling: VecDeque<Active>,
    decoding: Vec<Active>,
    max_rows: usize,
    max_positions: usize,
    stats: Stats,
}

impl Scheduler {
    pub(super) fn new(runner: Runner, layout: CacheLayout, config: &EngineConfig) -> Self {
        Self {
            runner,
            caches: Caches::with_reserve(layout.size, &config.reserve()),
            transfer: InProcess::new(layout.clone()),
            layout,
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            decoding: Vec::new(),
            max_rows: config.max_num_seqs,
            max_positions: config.max_model_len,
            stats: Stats::default(),
        }
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub(super) fn idle(&self) -> bool {
        self.waiting.is_empty() && self.prefilling.is_empty() && self.decoding.is_empty()
    }

    /// Requests with pages.
    fn running(&self) -> usize {
        self.prefilling.len() + self.decoding.len()
    }

    /// One round: drop what was abandoned, admit what fits, one prefill block, one decode step.
    ///
    /// # Errors
    /// The device's sentence; the engine ends with it.
    pub(super) fn round(&mut self) -> Result<(), String> {
        self.drop_abandoned();
        self.settle();
        self.admit();
        self.prefill()?;
        self.settle();
        self.decode()?;
        self.settle();
        Ok(())
    }

    /// Every step so far has completed: nothing can still be using what was returned.
    fn settle(&mut self) {
        self.caches.settle(self.runner.completed);
    }

    pub(super) fn stats(&self) -> Stats {
        let c = &self.caches;
        Stats {
            running: self.running(),
            waiting: self.waiting.len(),
            steps: self.runner.completed,
            free_blocks: c.blocks.free_count(),
            total_blocks: c.blocks.total(),
            free_windows: c.windows.free_count(),
            total_windows: c.windows.total(),
            free_slots: c.slots.free_count(),
            total_slots: c.slots.total(),
            ..self.stats
        }
    }

    /// Ends every request with `error`, for an engine that cannot go on.
    pub(super) fn fail_all(&mut self, error: &EngineError) {
        for mut waiting in self.waiting.drain(..) {
            self.stats.failed += 1;
            waiting.reader.end(Event::Failed(error.clone()));
        }
        for mut active in self.prefilling.drain(..).chain(self.decoding.drain(..)) {
            self.stats.failed += 1;
            active.fail(error.clone());
        }
    }

    fn drop_abandoned(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|w| !w.reader.gone());
        self.stats.aborted += (before - self.waiting.len()) as u64;
        let (mut gone, prefilling): (Vec<_>, Vec<_>) = self.prefilling.drain(..).partition(Active::abandoned);
        self.prefilling = prefilling.into();
        gone.extend(self.decoding.extract_if(.., |a| a.abandoned()));
        for active in gone {
            self.stats.aborted += 1;
            self.release(active);
        }
    }

    /// In order of arrival; the first that does not fit waits, and those behind it too.
    fn admit(&mut self) {
        while self.running() < self.max_rows {
            let Some(next) = self.waiting.front() else { return };
            let owner = Owner(next.id);
            let tokens = (next.request.prompt.len() + next.request.max_tokens).min(self.max_positions);
            let Ok(sequence) = Sequence::admit(&mut self.caches, owner, tokens) else { return };
            if let Some(Waiting { id, request, reader }) = self.waiting.pop_front() {
                let active = Active { id, request, reader, sequence, len: 0, generated: 0 };
                self.prefilling.push_back(active);
            }
        }
    }

    /// One block of the request that has waited longest.
    fn prefill(&mut self) -> Result<(), String> {
        let Some(active) = self.prefilling.front_mut() else { return Ok(()) };
        let (from, prompt) = (active.len, active.request.prompt.len());
        let to = prompt.min(from + BLOCK_TOKENS);
        let last = to == prompt;
        let step = self.runner.prefill;
        if let Err(error) = active.sequence.extend_window(&mut self.caches, from, to) {
            let error = EngineError::Internal(error.to_string());
            self.prefilling.pop_front().into_iter().for_each(|active| self.fail(active, error.clone()));
            return Ok(());
        }
        let segment = Segment {
            sequence: &active.sequence,
            start: from,
            tokens: Tokens::Given(&active.request.prompt[from..to]),
            sample: last.then_some(&active.request.sampling),
        };
        self.runner.run(step, &self.caches, &[segment])?;
        self.stats.prompt_tokens += (to - from) as u64;
        let Some(active) = self.prefilling.pop_front() else { return Ok(()) };
        let Some(active) = self.advance(active, to) else { return Ok(()) };
        if last {
            let sampled = self.runner.sampled(step, 0, &active.request.sampling);
            self.hand_over(active, sampled);
        } else {
            self.prefilling.push_front(active);
        }
        Ok(())
    }

    /// The rows before `len` are in the cache; pages behind the window go back.
    fn advance(&mut self, mut active: Active, len: usize) -> Option<Active> {
        active.len = len;
        match active.sequence.slide(&mut self.caches, len, self.runner.completed) {
            Ok(()) => Some(active),
            Err(error) => {
                self.fail(active, EngineError::Internal(error.to_string()));
                None
            }
        }
    }

    /// The prompt is in the cache: its first token goes out and it joins the decoding requests.
    fn hand_over(&mut self, active: Active, sampled: Sampled) {
        let manifest = Manifest::complete(&self.layout, active.sequence.clone(), active.len);
        if let Err(error) = self.transfer.hand_over(&self.caches, &manifest) {
            self.fail(active, EngineError::Internal(error.to_string()));
        } else if let Some(active) = self.deliver(active, sampled) {
            self.decoding.push(active);
        }
    }

    fn decode(&mut self) -> Result<(), String> {
        self.extend_decoding();
        if self.decoding.is_empty() {
            return Ok(());
        }
        let step = self.runner.bucket(self.decoding.len());
        let segments: Vec<Segment<'_>> = self
            .decoding
            .iter()
            .map(|a| Segment {
                sequence: &a.sequence,
                start: a.len,
                tokens: Tokens::Carried,
                sample: Some(&a.request.sampling),
            })
            .collect();
        self.runner.run(step, &self.caches, &segments)?;
        for (row, active) in std::mem::take(&mut self.decoding).into_iter().enumerate() {
            let len = active.len + 1;
            let Some(active) = self.advance(active, len) else { continue };
            let sampled = self.runner.sampled(step, row, &active.request.sampling);
            if let Some(active) = self.deliver(active, sampled) {
                self.decoding.push(active);
            }
        }
        Ok(())
    }

    /// A window row for each decoding request's newest token.
    fn extend_decoding(&mut self) {
        for mut active in std::mem::take(&mut self.decoding) {
            match active.sequence.extend_window(&mut self.caches, active.len, active.len + 1) {
                Ok(()) => self.decoding.push(active),
                Err(error) => self.fail(active, EngineError::Internal(error.to_string())),
            }
        }
    }

    /// Emits the token; gives the request back if it goes on.
    fn deliver(&mut self, mut active: Active, sampled: Sampled) -> Option<Active> {
        let Some(token) = sampled.token else {
            let position = active.len;
            self.fail(active, EngineError::NonFinite { position });
            return None;
        };
        self.stats.generated_tokens += 1;
        let end = active.emit(token, sampled.logprobs, self.max_positions);
        let Some(reason) = end else { return Some(active) };
        self.stats.finished += 1;
        active.finish(reason);
        self.release(active);
        None
    }

    fn fail(&mut self, mut active: Active, error: EngineError) {
        self.stats.failed += 1;
        active.fail(error);
        self.release(active);
    }

    /// Returns a request's pages; they are free once the present step has settled.
    fn release(&mut self, active: Active) {
        let Active { id, sequence, .. } = active;
        if let Err(error) = sequence.release(&mut self.caches, self.runner.completed) {
            tracing::error!(request = id, %error, "pages were not returned");
        }
    }
}
