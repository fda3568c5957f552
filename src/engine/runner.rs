//! Launches prepared steps on a device, one ahead of what has been read: fills their inputs, has them checked, and reads
//! what was sampled.

use std::collections::VecDeque;
use std::sync::Arc;

use super::api::{Logprobs, SamplingParams};
use super::bucket::{Prepared, RING};
use super::device::{Device, Wanted};
use super::inputs::{Held, Segment, fill};
use super::logprobs::logprobs;
use crate::cache::Caches;
use crate::step::LayoutError;

/// What a step left for one sampled row.
pub(super) struct Sampled {
    /// `None`: the logits allow no choice.
    pub(super) token: Option<u32>,
    pub(super) logprobs: Option<Logprobs>,
}

/// A sampled row of a step: the request that it is of, and the position that its token has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) request: u64,
    pub(super) position: usize,
}

/// A launched step that has not been read.
#[derive(Debug)]
pub(super) struct Flight {
    step: usize,
    slot: usize,
    /// The first of its rows that are sampled from.
    pub(super) rows: Vec<Row>,
}

/// A device with its steps. It holds no request, so a step that fails leaves every request where it was.
pub(super) struct Runner {
    device: Box<dyn Device>,
    steps: Arc<[Prepared]>,
    /// Index of the prefill step; decode steps are before it, ascending.
    pub(super) prefill: usize,
    flights: VecDeque<Flight>,
    /// Steps launched so far: the number of the newest.
    pub(super) launched: u64,
}

impl Runner {
    pub(super) fn new(device: Box<dyn Device>) -> Self {
        let steps = device.steps();
        let prefill = steps.len() - 1;
        Self { device, steps, prefill, flights: VecDeque::new(), launched: 0 }
    }

    /// Steps that have completed and been read.
    pub(super) fn completed(&self) -> u64 {
        self.launched - self.flights.len() as u64
    }

    /// Nothing is under way.
    pub(super) fn idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Another step can be launched before one is read.
    pub(super) fn has_room(&self) -> bool {
        self.flights.len() < RING
    }

    /// The smallest decode step that holds `rows`.
    pub(super) fn bucket(&self, rows: usize) -> usize {
        let decode = &self.steps[..self.prefill];
        decode.iter().position(|p| p.step.shape.requests >= rows).unwrap_or(self.prefill - 1)
    }

    /// Fills the inputs of the next launch and checks them. Inputs that break what the proof relies on never reach the device.
    ///
    /// # Errors
    /// The [`LayoutError`], with the index of the segment at fault.
    pub(super) fn seal(
        &mut self,
        step: usize,
        caches: &Caches,
        segments: &[Segment<'_>],
    ) -> Result<(), (Option<usize>, LayoutError)> {
        let slot = self.next_slot();
        let Prepared { step: model, layout, .. } = &self.steps[step];
        let memory = self.device.io(step, slot);
        fill(model, memory, segments);
        let owners = Held { caches, io: &model.io, segments };
        layout.check(memory, &owners).map_err(|error| {
            let request = error.request(model.shape.per_request);
            (request.filter(|at| *at < segments.len()), error)
        })
    }

    /// Starts the step that was sealed last; `rows` are its sampled rows, `logits` those of them whose logits are read.
    ///
    /// # Errors
    /// A sentence; nothing can be run any more.
    pub(super) fn launch(&mut self, step: usize, rows: Vec<Row>, logits: Vec<usize>) -> Result<(), String> {
        let slot = self.next_slot();
        self.device.launch(step, slot, &Wanted { logits, choices: false })?;
        self.launched += 1;
        self.flights.push_back(Flight { step, slot, rows });
        Ok(())
    }

    /// Waits for the oldest step under way; `None` if there is none.
    ///
    /// # Errors
    /// A sentence; nothing can be run any more.
    pub(super) fn wait(&mut self) -> Result<Option<Flight>, String> {
        let Some(oldest) = self.flights.front() else { return Ok(None) };
        self.device.wait(oldest.step, oldest.slot)?;
        Ok(self.flights.pop_front())
    }

    /// Reads a row of a step that was waited for, before the next launch.
    pub(super) fn sampled(&mut self, flight: &Flight, row: usize, params: &SamplingParams) -> Sampled {
        let model = &self.steps[flight.step].step;
        let io = &model.io;
        let memory = self.device.io(flight.step, flight.slot);
        let ok = memory.host::<i32>(&io.status)[row] == 0;
        let token = u32::try_from(memory.host::<i32>(&io.next)[row]).ok().filter(|_| ok);
        let logprobs = token.zip(params.top_logprobs).map(|(id, top)| {
            let vocab = io.logits.len / model.shape.samples;
            logprobs(&memory.host::<f32>(&io.logits)[row * vocab..][..vocab], id, top)
        });
        Sampled { token, logprobs }
    }

    /// Slots of the ring are used in turn, whatever the step.
    fn next_slot(&self) -> usize {
        (self.launched % RING as u64) as usize
    }
}
