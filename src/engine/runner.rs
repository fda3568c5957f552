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
use crate::instrument::{Launch, Stored, UnderWay, Watch};
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
    /// What the instruments, if there are any, have to do with it.
    watched: Option<UnderWay>,
}

/// A device with its steps. It holds no request, so a step that fails leaves every request where it was.
pub(super) struct Runner {
    device: Box<dyn Device>,
    steps: Arc<[Prepared]>,
    /// Index of the prefill step; decode steps are before it, ascending.
    pub(super) prefill: usize,
    flights: VecDeque<Flight>,
    watch: Option<Watch>,
    /// What the step that was sealed last stores, for the instruments.
    stored: Vec<Stored>,
    /// Steps launched so far: the number of the newest.
    pub(super) launched: u64,
}

impl Runner {
    pub(super) fn new(device: Box<dyn Device>, watch: Option<Watch>) -> Self {
        let steps = device.steps();
        let prefill = steps.len() - 1;
        let (flights, stored) = (VecDeque::new(), Vec::new());
        Self { device, steps, prefill, flights, watch, stored, launched: 0 }
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
        self.flights.len() < RING && (self.idle() || !self.alone(self.launched))
    }

    /// What is under way has to be read before the next launch.
    pub(super) fn wants_quiet(&self) -> bool {
        self.alone(self.launched + 1) && !self.idle()
    }

    fn alone(&self, step: u64) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.alone(step))
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
        if self.watch.is_some() {
            self.stored = segments.iter().map(Segment::stored).collect();
        }
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
        let (wanted, device) = (Wanted { logits, choices: false }, self.device.as_mut());
        self.launched += 1;
        let watched = match &mut self.watch {
            None => device.launch(step, slot, &wanted).map(|()| None),
            Some(watch) => {
                let stored = std::mem::take(&mut self.stored);
                let launch = Launch { step: self.launched, index: step, slot, stored };
                watch.launch(launch, &wanted, device).map(Some)
            }
        }?;
        self.flights.push_back(Flight { step, slot, rows, watched });
        Ok(())
    }

    /// Waits for the oldest step under way; `None` if there is none.
    ///
    /// # Errors
    /// A sentence; nothing can be run any more.
    pub(super) fn wait(&mut self, caches: &Caches) -> Result<Option<Flight>, String> {
        let Some(oldest) = self.flights.front_mut() else { return Ok(None) };
        let device = self.device.as_mut();
        match (&mut self.watch, oldest.watched.take()) {
            (Some(watch), Some(watched)) => watch.wait(watched, caches, device)?,
            _ => device.wait(oldest.step, oldest.slot)?,
        }
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
