//! What the engine needs of whatever runs its steps.

use std::sync::Arc;

use super::bucket::Prepared;
use crate::instrument::{Piece, Probe, Store, Tamper, edit_host, run_in_pieces, within};
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

    /// The device as instruments see it between steps; `None`: it cannot be looked into.
    fn probe(&mut self) -> Option<&mut dyn Probe> {
        None
    }
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

/// Bytes of a store in host memory.
pub(super) fn host_bytes(
    resident: &mut Resident,
    store: Store,
    offset: usize,
    len: usize,
) -> Result<&mut [u8], String> {
    let all = match store {
        Store::Pool(id) => resident.pools.get_mut(id.0 as usize),
        Store::State(id) => resident.states.get_mut(id.0 as usize),
    };
    let bytes = all.ok_or_else(|| format!("{store:?}: the device has no such store"))?;
    let range = within(store, bytes.len(), offset, len)?;
    Ok(&mut bytes[range])
}

impl<W: Send, E: std::fmt::Display> Probe for HostDevice<W, E> {
    fn read(&mut self, store: Store, offset: usize, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(host_bytes(&mut self.resident, store, offset, into.len())?);
        Ok(())
    }

    fn write(&mut self, store: Store, offset: usize, from: &[u8]) -> Result<(), String> {
        host_bytes(&mut self.resident, store, offset, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn rerun(&mut self, step: usize, memory: &mut Memory, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        let Prepared { step: model, plan, .. } = &self.steps[step];
        run_in_pieces(&model.graph, tampers, |piece| match piece {
            Piece::Edit(value, edit) => {
                edit_host(plan, memory, value, edit);
                Ok(())
            }
            Piece::Run(graph) => (self.run)(graph, plan, memory, &mut self.resident, &self.weights)
                .map_err(|error| error.to_string()),
        })
    }

    fn run_tampered(&mut self, step: usize, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        let mut memory = std::mem::take(&mut self.memory[step]);
        let ran = self.rerun(step, &mut memory, tampers);
        self.memory[step] = memory;
        ran
    }
}

impl<W: Send, E: std::fmt::Display> Device for HostDevice<W, E> {
    fn probe(&mut self) -> Option<&mut dyn Probe> {
        Some(self)
    }

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
