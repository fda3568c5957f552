//! What the engine needs of whatever runs its steps.

use std::sync::Arc;

use super::bucket::Prepared;
use crate::model::CacheLayout;
use crate::step::{Bytes, Graph, Memory, Plan, Resident};

/// Runs prepared steps. Inputs and outputs are in host memory, by step; pools and states stay with the device.
pub trait Device: Send {
    /// The prepared steps, in the order that `step` indices refer to.
    fn steps(&self) -> Arc<[Prepared]>;

    /// The inputs and outputs of a step.
    fn io(&mut self, step: usize) -> &mut Memory;

    /// Runs a step on the inputs that [`Device::io`] holds.
    ///
    /// # Errors
    /// A sentence; the device is then unusable.
    fn run(&mut self, step: usize) -> Result<(), String>;
}

/// How a host executor runs one step.
type RunStep<W, E> = fn(&Graph, &Plan, &mut Memory, &mut Resident, &W) -> Result<(), E>;

/// Steps in host memory, run by a host executor: the CPU path, or the oracle.
#[derive(Debug)]
pub struct HostDevice<W, E> {
    weights: W,
    run: RunStep<W, E>,
    steps: Arc<[Prepared]>,
    memory: Vec<Memory>,
    resident: Resident,
}

impl<W, E> HostDevice<W, E> {
    /// Zeroed caches for `layout` and memory for each step.
    #[must_use]
    pub fn new(layout: &CacheLayout, steps: Vec<Prepared>, weights: W, run: RunStep<W, E>) -> Self {
        let resident = Resident {
            pools: layout.pools().map(|p| Bytes::zeroed(p.pages * p.page_bytes)).collect(),
            states: layout.states().map(|s| Bytes::zeroed(s.slots * s.len * 4)).collect(),
        };
        let memory = steps.iter().map(|p| Memory::new(&p.step.graph, &p.plan)).collect();
        Self { weights, run, steps: steps.into(), memory, resident }
    }
}

impl<W: Send, E: std::fmt::Display> Device for HostDevice<W, E> {
    fn steps(&self) -> Arc<[Prepared]> {
        Arc::clone(&self.steps)
    }

    fn io(&mut self, step: usize) -> &mut Memory {
        &mut self.memory[step]
    }

    fn run(&mut self, step: usize) -> Result<(), String> {
        let Prepared { step: model, plan, .. } = &self.steps[step];
        (self.run)(&model.graph, plan, &mut self.memory[step], &mut self.resident, &self.weights)
            .map_err(|error| error.to_string())
    }
}
