//! Runs prepared steps on a device: fills their inputs, has them checked, and reads what was sampled.

use std::sync::Arc;

use super::api::{Logprobs, SamplingParams};
use super::bucket::{Prepared, RING};
use super::device::{Device, Wanted};
use super::inputs::{Held, Segment, fill};
use super::logprobs::logprobs;
use crate::cache::Caches;
use crate::instrument::{Launch, Watch};

/// What a step left for one sampled row.
pub(super) struct Sampled {
    /// `None`: the logits allow no choice.
    pub(super) token: Option<u32>,
    pub(super) logprobs: Option<Logprobs>,
}

/// A device with its steps. It holds no request, so a step that fails leaves every request where it was.
pub(super) struct Runner {
    device: Box<dyn Device>,
    steps: Arc<[Prepared]>,
    watch: Option<Watch>,
    /// Index of the prefill step; decode steps are before it, ascending.
    pub(super) prefill: usize,
    /// Steps that have completed.
    pub(super) completed: u64,
}

impl Runner {
    pub(super) fn new(device: Box<dyn Device>, watch: Option<Watch>) -> Self {
        let steps = device.steps();
        let prefill = steps.len() - 1;
        Self { device, steps, watch, prefill, completed: 0 }
    }

    /// The smallest decode step that holds `rows`.
    pub(super) fn bucket(&self, rows: usize) -> usize {
        let decode = &self.steps[..self.prefill];
        decode.iter().position(|p| p.step.shape.requests >= rows).unwrap_or(self.prefill - 1)
    }

    /// Fills the inputs, seals them, runs. Inputs that break what the proof relies on never reach the device.
    ///
    /// # Errors
    /// A sentence; nothing can be run any more.
    pub(super) fn run(
        &mut self,
        step: usize,
        caches: &Caches,
        segments: &[Segment<'_>],
    ) -> Result<(), String> {
        let Prepared { step: model, layout, .. } = &self.steps[step];
        let slot = self.slot();
        let memory = self.device.io(step, slot);
        fill(model, memory, segments);
        let owners = Held { caches, io: &model.io, segments };
        layout
            .check(memory, &owners)
            .map_err(|error| format!("the inputs of a step were refused: {error}"))?;
        let asks = |s: &Segment<'_>| s.sample.is_some_and(|sampling| sampling.top_logprobs.is_some());
        let logits = segments.iter().enumerate().filter(|(_, s)| asks(s)).map(|(row, _)| row).collect();
        let wanted = Wanted { logits, choices: false };
        let device = self.device.as_mut();
        match &mut self.watch {
            None => {
                device.launch(step, slot, &wanted)?;
                device.wait(step, slot)?;
            }
            Some(watch) => {
                let stored = segments.iter().map(Segment::stored).collect();
                let launch = Launch { step: self.completed + 1, index: step, slot, stored };
                let under_way = watch.launch(launch, &wanted, device)?;
                watch.wait(under_way, caches, device)?;
            }
        }
        self.completed += 1;
        Ok(())
    }

    fn slot(&self) -> usize {
        (self.completed % RING as u64) as usize
    }

    pub(super) fn sampled(&mut self, step: usize, row: usize, params: &SamplingParams) -> Sampled {
        let io = &self.steps[step].step.io;
        let slot = (self.slot() + RING - 1) % RING;
        let memory = self.device.io(step, slot);
        let ok = memory.host::<i32>(&io.status)[row] == 0;
        let token = u32::try_from(memory.host::<i32>(&io.next)[row]).ok().filter(|_| ok);
        let logprobs = token.zip(params.top_logprobs).map(|(id, top)| {
            let vocab = io.logits.len / self.steps[step].step.shape.samples;
            logprobs(&memory.host::<f32>(&io.logits)[row * vocab..][..vocab], id, top)
        });
        Sampled { token, logprobs }
    }
}
