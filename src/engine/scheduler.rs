//! Which requests are in the next step. Single-threaded and without a clock: the same submissions in the same order give
//! the same steps.

use std::collections::VecDeque;
use std::sync::Arc;

use super::api::{EngineError, FinishReason, Stats};
use super::bucket::Prepared;
use super::device::Device;
use super::inputs::{Held, Segment, fill};
use super::logprobs::logprobs;
use super::request::{Active, Waiting};
use crate::cache::{Caches, InProcess, Manifest, Owner, PageError, Sequence, Transfer};
use crate::model::CacheLayout;
use crate::ops::BLOCK_TOKENS;

/// Owns the device, the pages and every request.
pub(super) struct Scheduler {
    device: Box<dyn Device>,
    steps: Arc<[Prepared]>,
    layout: CacheLayout,
    transfer: InProcess,
    caches: Caches,
    waiting: VecDeque<Waiting>,
    prefilling: VecDeque<Active>,
    decoding: Vec<Active>,
    max_rows: usize,
    max_positions: usize,
    /// Index of the prefill step; decode steps are before it, ascending.
    prefill_step: usize,
    stats: Stats,
}

/// What a step left for one sampled row.
struct Sampled {
    token: Result<u32, ()>,
    logprobs: Option<super::api::Logprobs>,
}

impl Scheduler {
    pub(super) fn new(
        device: Box<dyn Device>,
        layout: CacheLayout,
        max_rows: usize,
        max_positions: usize,
    ) -> Self {
        let caches = Caches::new(layout.size);
        let steps = device.steps();
        let prefill_step = steps.len() - 1;
        let transfer = InProcess::new(layout.clone());
        let (waiting, prefilling, decoding) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let stats = Stats::default();
        Self {
            device,
            steps,
            layout,
            transfer,
            caches,
            waiting,
            prefilling,
            decoding,
            max_rows,
            max_positions,
            prefill_step,
            stats,
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
        self.caches.settle(self.stats.steps);
    }

    pub(super) fn stats(&self) -> Stats {
        let c = &self.caches;
        Stats {
            running: self.running(),
            waiting: self.waiting.len(),
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
        for waiting in self.waiting.drain(..) {
            self.stats.failed += 1;
            let _gone = waiting.events.try_send(super::api::Event::Failed(error.clone()));
        }
        for active in self.prefilling.drain(..).chain(self.decoding.drain(..)) {
            self.stats.failed += 1;
            active.fail(error.clone());
        }
    }

    fn drop_abandoned(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|w| !w.events.is_closed());
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
            if let Some(Waiting { id, request, events }) = self.waiting.pop_front() {
                let active = Active { id, request, events, sequence, len: 0, newest: None, generated: 0 };
                self.prefilling.push_back(active);
            }
        }
    }

    /// One block of the request that has waited longest.
    fn prefill(&mut self) -> Result<(), String> {
        let Some(mut active) = self.prefilling.pop_front() else { return Ok(()) };
        let (from, prompt) = (active.len, active.request.prompt.len());
        let to = prompt.min(from + BLOCK_TOKENS);
        if let Err(error) = active.sequence.extend_window(&mut self.caches, from, to) {
            self.end_with_error(active, error);
            return Ok(());
        }
        let last = to == prompt;
        let segment = Segment {
            sequence: &active.sequence,
            start: from,
            tokens: &active.request.prompt[from..to],
            sample: last.then_some(&active.request.sampling),
        };
        self.run(self.prefill_step, &[segment])?;
        self.stats.prompt_tokens += (to - from) as u64;
        active.len = to;
        if let Err(error) = active.sequence.slide(&mut self.caches, to, self.stats.steps) {
            self.end_with_error(active, error);
            return Ok(());
        }
        if !last {
            self.prefilling.push_front(active);
            return Ok(());
        }
        let sampled = self.sampled(self.prefill_step, 0, &active);
        self.hand_over(active, sampled);
        Ok(())
    }

    /// The prompt is in the cache: its first token goes out and it joins the decoding requests.
    fn hand_over(&mut self, active: Active, sampled: Sampled) {
        let manifest = Manifest::complete(&self.layout, active.sequence.clone(), active.len);
        if let Err(error) = self.transfer.hand_over(&self.caches, &manifest) {
            active.fail(EngineError::Internal(error.to_string()));
            self.stats.failed += 1;
            self.release(active);
            return;
        }
        if let Some(active) = self.deliver(active, sampled) {
            self.decoding.push(active);
        }
    }

    fn decode(&mut self) -> Result<(), String> {
        if self.decoding.is_empty() {
            return Ok(());
        }
        let mut batch = Vec::with_capacity(self.decoding.len());
        for mut active in std::mem::take(&mut self.decoding) {
            match active.sequence.extend_window(&mut self.caches, active.len, active.len + 1) {
                Ok(()) => batch.push(active),
                Err(error) => self.end_with_error(active, error),
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        let step = self.bucket(batch.len());
        let newest: Vec<[u32; 1]> = batch.iter().map(|a| [a.newest.unwrap_or(0)]).collect();
        let segments: Vec<Segment<'_>> = batch
            .iter()
            .zip(&newest)
            .map(|(a, token)| Segment {
                sequence: &a.sequence,
                start: a.len,
                tokens: token,
                sample: Some(&a.request.sampling),
            })
            .collect();
        self.run(step, &segments)?;
        for (row, mut active) in batch.into_iter().enumerate() {
            active.len += 1;
            if let Err(error) = active.sequence.slide(&mut self.caches, active.len, self.stats.steps) {
                self.end_with_error(active, error);
                continue;
            }
            let sampled = self.sampled(step, row, &active);
            if let Some(active) = self.deliver(active, sampled) {
                self.decoding.push(active);
            }
        }
        Ok(())
    }

    fn bucket(&self, rows: usize) -> usize {
        let decode = &self.steps[..self.prefill_step];
        decode.iter().position(|p| p.step.shape.requests >= rows).unwrap_or(self.prefill_step - 1)
    }

    /// Fills the inputs, seals them, runs. Inputs that break what the proof relies on never reach the device.
    fn run(&mut self, step: usize, segments: &[Segment<'_>]) -> Result<(), String> {
        let Prepared { step: model, layout, .. } = &self.steps[step];
        let memory = self.device.io(step);
        fill(model, memory, segments);
        let owners = Held { caches: &self.caches, io: &model.io, segments };
        layout
            .check(memory, &owners)
            .map_err(|error| format!("the inputs of a step were refused: {error}"))?;
        self.device.run(step)?;
        self.stats.steps += 1;
        Ok(())
    }

    fn sampled(&mut self, step: usize, row: usize, active: &Active) -> Sampled {
        let io = &self.steps[step].step.io;
        let memory = self.device.io(step);
        let ok = memory.host::<i32>(&io.status)[row] == 0;
        let token = u32::try_from(memory.host::<i32>(&io.next)[row]).ok().filter(|_| ok).ok_or(());
        let vocab = io.logits.len / memory.host::<i32>(&io.next).len();
        let logits = &memory.host::<f32>(&io.logits)[row * vocab..][..vocab];
        let logprobs = match (token, active.request.sampling.top_logprobs) {
            (Ok(id), Some(top)) => Some(logprobs(logits, id, top)),
            _ => None,
        };
        Sampled { token, logprobs }
    }

    /// Emits the token; gives the request back if it goes on.
    fn deliver(&mut self, mut active: Active, sampled: Sampled) -> Option<Active> {
        let Ok(token) = sampled.token else {
            active.fail(EngineError::NonFinite { position: active.len });
            self.stats.failed += 1;
            self.release(active);
            return None;
        };
        self.stats.generated_tokens += 1;
        let end = active.emit(token, sampled.logprobs, self.max_positions);
        let Some(reason) = end else { return Some(active) };
        self.finish(active, reason);
        None
    }

    fn finish(&mut self, active: Active, reason: FinishReason) {
        active.finish(reason);
        self.stats.finished += 1;
        self.release(active);
    }

    fn end_with_error(&mut self, active: Active, error: PageError) {
        active.fail(EngineError::Internal(error.to_string()));
        self.stats.failed += 1;
        self.release(active);
    }

    /// Returns a request's pages; they are free once the present step has settled.
    fn release(&mut self, active: Active) {
        let id = active.id;
        if let Err(error) = active.sequence.release(&mut self.caches, self.stats.steps) {
            tracing::error!(request = id, %error, "pages were not returned");
        }
    }
}
