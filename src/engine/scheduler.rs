//! Which requests are in the next step. Single-threaded and without a clock: the same calls in the same order give the same
//! steps.
//!
//! The scheduler is one step ahead of what it has read: while a step runs it decides the next from the one before. So a
//! request that ends by a stop token, an abort or a failure may have a row in the step under way; that row is discarded, and
//! the request's pages come back once that step has completed.

use std::collections::{BTreeMap, VecDeque};

use super::api::{EngineError, Event, Stats};
use super::handle::EngineConfig;
use super::inputs::{Segment, Tokens};
use super::request::{Active, Waiting};
use super::runner::{Row, Runner, Sampled};
use crate::cache::{Caches, InProcess, Manifest, Owner, Sequence, Transfer};
use crate::model::CacheLayout;
use crate::ops::BLOCK_TOKENS;
use crate::step::LayoutError;

/// Owns the device, the pages and every request. A request stays where it is while a step runs, so that one whose step
/// fails, or panics, is still there to be told.
pub(super) struct Scheduler {
    runner: Runner,
    layout: CacheLayout,
    transfer: InProcess,
    caches: Caches,
    waiting: VecDeque<Waiting>,
    /// Requests with pages, by id: in order of arrival.
    active: BTreeMap<u64, Active>,
    max_rows: usize,
    max_positions: usize,
    /// Prefill blocks launched since the last decode step that could have run in their place.
    blocks_since_decode: u64,
    /// The next prefill block is the oldest request's, not that of the shortest prompt.
    oldest_next: bool,
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
            active: BTreeMap::new(),
            max_rows: config.max_num_seqs,
            max_positions: config.max_model_len,
            blocks_since_decode: 0,
            oldest_next: false,
            stats: Stats::default(),
        }
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub(super) fn idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty() && self.runner.idle()
    }

    /// One round: drop what was abandoned, admit what fits, launch a step, and read the one before it.
    ///
    /// # Errors
    /// The device's sentence; the engine ends with it.
    pub(super) fn round(&mut self) -> Result<(), String> {
        self.drop_abandoned();
        self.settle();
        while self.runner.wants_quiet() {
            self.complete()?;
            self.settle();
        }
        self.admit();
        self.refuse_what_cannot_come();
        let launched = self.launch()?;
        if !launched || !self.runner.has_room() {
            self.complete()?;
            self.settle();
        }
        Ok(())
    }

    /// Nothing can still be using what was returned before the steps that have completed.
    fn settle(&mut self) {
        self.caches.settle(self.runner.completed());
    }

    pub(super) fn stats(&self) -> Stats {
        let c = &self.caches;
        Stats {
            running: self.active.len(),
            waiting: self.waiting.len(),
            steps: self.runner.completed(),
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
        for mut active in std::mem::take(&mut self.active).into_values() {
            self.stats.failed += 1;
            active.fail(error.clone());
        }
    }

    fn drop_abandoned(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|w| !w.reader.gone());
        self.stats.aborted += (before - self.waiting.len()) as u64;
        let gone: Vec<Active> = self.active.extract_if(.., |_, a| a.abandoned()).map(|(_, a)| a).collect();
        for active in gone {
            self.stats.aborted += 1;
            self.release(active);
        }
    }

    /// In order of arrival; the first that does not fit waits, and those behind it too.
    fn admit(&mut self) {
        while self.active.len() < self.max_rows {
            let Some(next) = self.waiting.front() else { return };
            let owner = Owner(next.id);
            let tokens = (next.request.prompt.len() + next.request.max_tokens).min(self.max_positions);
            let Ok(sequence) = Sequence::admit(&mut self.caches, owner, tokens) else { return };
            if let Some(Waiting { id, request, reader }) = self.waiting.pop_front() {
                self.active.insert(id, Active { id, request, reader, sequence, len: 0, generated: 0 });
            }
        }
    }

    /// With nothing running and nothing under way no page can come back: what still does not fit never will.
    fn refuse_what_cannot_come(&mut self) {
        if !(self.active.is_empty() && self.runner.idle()) {
            return;
        }
        if let Some(Waiting { request, mut reader, .. }) = self.waiting.pop_front() {
            let needed = (request.prompt.len() + request.max_tokens).div_ceil(BLOCK_TOKENS);
            let total = self.caches.blocks.free_count();
            self.stats.failed += 1;
            reader.end(Event::Failed(EngineError::OutOfPages { needed, total }));
        }
    }

    /// A prefill block and a decode step in turn, where there is work for both; false if there is none.
    fn launch(&mut self) -> Result<bool, String> {
        let decodes = self.active.values().any(|a| a.decodes(self.max_positions));
        let prefills = !decodes || self.blocks_since_decode == 0;
        if prefills && let Some(id) = self.next_block() {
            if self.prefill(id)? {
                self.blocks_since_decode += u64::from(decodes);
                self.stats.prefill_blocks += 1;
                return Ok(true);
            }
            return Ok(false);
        }
        let longest = &mut self.stats.blocks_between_decodes;
        *longest = self.blocks_since_decode.max(*longest);
        self.blocks_since_decode = 0;
        self.decode()
    }

    /// Blocks go in turn to the request with the fewest left and to the one that has waited longest: a short prompt does not
    /// wait for a long one to end, and a long one does not wait for ever.
    fn next_block(&self) -> Option<u64> {
        let mut waiting = self.active.values().filter(|a| a.blocks_left() > 0);
        if self.oldest_next {
            return waiting.next().map(|a| a.id);
        }
        waiting.min_by_key(|a| (a.blocks_left(), a.id)).map(|a| a.id)
    }

    /// One block of a request's prompt; false if the request failed instead.
    fn prefill(&mut self, id: u64) -> Result<bool, String> {
        let step = self.runner.prefill;
        let Some(active) = self.active.get_mut(&id) else { return Ok(false) };
        let (from, prompt) = (active.len, active.request.prompt.len());
        let to = prompt.min(from + BLOCK_TOKENS);
        if let Err(error) = active.sequence.extend_window(&mut self.caches, from, to) {
            self.fail(id, EngineError::Internal(error.to_string()));
            return Ok(false);
        }
        let sample = (to == prompt).then_some(&active.request.sampling);
        let tokens = Tokens::Given(&active.request.prompt[from..to]);
        let segment = Segment { sequence: &active.sequence, start: from, tokens, sample };
        if let Err((_, error)) = self.runner.seal(step, &self.caches, &[segment]) {
            self.fail(id, refused(&error));
            return Ok(false);
        }
        let rows = sample.iter().map(|_| Row { request: id, position: to }).collect();
        let logits = sample.iter().filter(|s| s.top_logprobs.is_some()).map(|_| 0).collect();
        self.runner.launch(step, rows, logits)?;
        self.oldest_next = !self.oldest_next;
        self.stats.prompt_tokens += (to - from) as u64;
        self.advance(id, to);
        if to == prompt {
            self.hand_over(id);
        }
        Ok(true)
    }

    /// The rows before `len` are in the cache once the steps launched so far have run; pages behind the window go back then.
    fn advance(&mut self, id: u64, len: usize) {
        let Some(active) = self.active.get_mut(&id) else { return };
        active.len = len;
        if let Err(error) = active.sequence.slide(&mut self.caches, len, self.runner.launched) {
            self.fail(id, EngineError::Internal(error.to_string()));
        }
    }

    /// The prompt's last block is on its way: the request joins the decoding ones.
    fn hand_over(&mut self, id: u64) {
        let Some(active) = self.active.get(&id) else { return };
        let manifest = Manifest::complete(&self.layout, active.sequence.clone(), active.len);
        if let Err(error) = self.transfer.hand_over(&self.caches, &manifest) {
            self.fail(id, EngineError::Internal(error.to_string()));
        }
    }

    /// One token of every request that has its prompt in the cache and more to say. One whose inputs are refused fails alone.
    fn decode(&mut self) -> Result<bool, String> {
        self.extend_decoding();
        let (step, rows, logits) = loop {
            let limit = self.max_positions;
            let decoding: Vec<&Active> = self.active.values().filter(|a| a.decodes(limit)).collect();
            if decoding.is_empty() {
                return Ok(false);
            }
            let step = self.runner.bucket(decoding.len());
            let segments: Vec<Segment<'_>> = decoding.iter().map(|a| a.next_token()).collect();
            let Err((at, error)) = self.runner.seal(step, &self.caches, &segments) else {
                let rows: Vec<_> =
                    decoding.iter().map(|a| Row { request: a.id, position: a.len + 1 }).collect();
                let asks = |(_, a): &(usize, &&Active)| a.request.sampling.top_logprobs.is_some();
                break (step, rows, decoding.iter().enumerate().filter(asks).map(|(row, _)| row).collect());
            };
            let Some(id) = at.map(|at| decoding[at].id) else {
                return Err(format!("the inputs of a step were refused: {error}"));
            };
            self.fail(id, refused(&error));
        };
        self.runner.launch(step, rows.clone(), logits)?;
        rows.iter().for_each(|row| self.advance(row.request, row.position));
        Ok(true)
    }

    /// A window row for each decoding request's newest token.
    fn extend_decoding(&mut self) {
        let mut failed = Vec::new();
        for active in self.active.values_mut().filter(|a| a.decodes(self.max_positions)) {
            if let Err(error) = active.sequence.extend_window(&mut self.caches, active.len, active.len + 1) {
                failed.push((active.id, EngineError::Internal(error.to_string())));
            }
        }
        failed.into_iter().for_each(|(id, error)| self.fail(id, error));
    }

    /// Reads the oldest step under way and hands its tokens out.
    fn complete(&mut self) -> Result<(), String> {
        let Some(flight) = self.runner.wait(&self.caches)? else { return Ok(()) };
        for (at, &row) in flight.rows.iter().enumerate() {
            if let Some(active) = self.active.get(&row.request) {
                let sampled = self.runner.sampled(&flight, at, &active.request.sampling);
                self.deliver(row, sampled);
            } else {
                self.stats.discarded_rows += 1;
            }
        }
        Ok(())
    }

    /// Emits the token; ends the request if it is its last.
    fn deliver(&mut self, Row { request: id, position }: Row, sampled: Sampled) {
        let Some(token) = sampled.token else {
            self.fail(id, EngineError::NonFinite { position });
            return;
        };
        let Some(active) = self.active.get_mut(&id) else { return };
        self.stats.generated_tokens += 1;
        let Some(reason) = active.emit(position, token, sampled.logprobs, self.max_positions) else { return };
        if let Some(mut active) = self.active.remove(&id) {
            self.stats.finished += 1;
            active.finish(reason);
            self.release(active);
        }
    }

    fn fail(&mut self, id: u64, error: EngineError) {
        let Some(mut active) = self.active.remove(&id) else { return };
        self.stats.failed += 1;
        active.fail(error);
        self.release(active);
    }

    /// Returns a request's pages; they are free once every step launched so far has completed.
    fn release(&mut self, active: Active) {
        let Active { id, sequence, .. } = active;
        if let Err(error) = sequence.release(&mut self.caches, self.runner.launched) {
            tracing::error!(request = id, %error, "pages were not returned");
        }
    }
}

/// What the layout check says of a request's inputs, as its end.
fn refused(error: &LayoutError) -> EngineError {
    EngineError::Internal(format!("the inputs of this request were refused: {error}"))
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
