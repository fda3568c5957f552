//! What the engine needs of whatever runs its steps.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::bucket::{Prepared, RING};
use crate::instrument::{Piece, Probe, Store, Tamper, edit_host, run_in_pieces, within};
use crate::model::{CacheLayout, ModelStep};
use crate::step::{Bytes, Class, Graph, HostIo, Memory, Plan, Resident};

/// Outputs that the host reads after a step beside the next tokens and their status, which it always reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Rows of the logits.
    pub logits: Vec<usize>,
    /// The chosen experts and selected rows of every layer.
    pub choices: bool,
}

impl Wanted {
    /// Everything.
    #[must_use]
    pub fn all(step: &ModelStep) -> Self {
        Self { logits: (0..step.shape.samples).collect(), choices: true }
    }

    /// What the host reads, as ranges of the outputs' block: the small outputs in the first.
    #[must_use]
    pub fn ranges(&self, step: &ModelStep, host: &HostIo) -> Vec<Range<usize>> {
        let io = &step.io;
        let mut ranges = vec![host.span(&io.next, &io.status)];
        let logits = host.span(&io.logits, &io.logits);
        let row = logits.len() / step.shape.samples.max(1);
        let rows = self.logits.iter().filter(|row| **row < step.shape.samples);
        ranges.extend(rows.map(|r| logits.start + r * row..logits.start + (r + 1) * row));
        if self.choices {
            let choices = io.experts.iter().chain(io.selected.iter().flatten());
            ranges.extend(choices.map(|value| host.span(value, value)));
        }
        ranges
    }
}

/// Runs prepared steps one after another. Inputs and outputs are in host memory, in a ring of [`RING`] slots for each step;
/// pools, states and the newest tokens stay with the device.
///
/// A slot's inputs are written before its launch and its outputs read after its wait; in between it is the device's.
pub trait Device: Send {
    /// The prepared steps, in the order that `step` indices refer to.
    fn steps(&self) -> Arc<[Prepared]>;

    /// The inputs and outputs of a step in a slot of the ring.
    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo;

    /// Starts a step, after those started before, on the inputs in its slot. Does not wait for it.
    ///
    /// # Errors
    /// A sentence; the device is then unusable.
    fn launch(&mut self, step: usize, slot: usize, wanted: &Wanted) -> Result<(), String>;

    /// Waits for the step that was started in the slot, until its small outputs, and of the others what was wanted, can be
    /// read. Other outputs have leftovers.
    ///
    /// # Errors
    /// A sentence; the device is then unusable.
    fn wait(&mut self, step: usize, slot: usize) -> Result<(), String>;

    /// The device as instruments see it while no step is under way; `None`: it cannot be looked into.
    fn probe(&mut self) -> Option<&mut dyn Probe> {
        None
    }
}

/// How a host executor runs one step.
type RunStep<W, E> = fn(&Graph, &Plan, &mut Memory, &mut Resident, &W) -> Result<(), E>;

/// Steps in host memory, run by a host executor: the CPU path, or the oracle. As nothing runs beside the engine's thread, a
/// step runs when it is waited for, so that the tokens of one are out before the next begins.
#[derive(Debug)]
pub struct HostDevice<W, E> {
    weights: W,
    run: RunStep<W, E>,
    steps: Arc<[Prepared]>,
    /// By step: what a device would hold.
    memory: Vec<Memory>,
    /// By step: what the host sees.
    ring: Vec<[HostIo; RING]>,
    launched: VecDeque<(usize, usize, Wanted)>,
    resident: Resident,
}

impl<W, E> HostDevice<W, E> {
    /// Bytes that [`new`](Self::new) takes: pools, states, and for each step its arena and a ring of inputs and outputs.
    #[must_use]
    pub fn bytes(layout: &CacheLayout, steps: &[Prepared]) -> usize {
        let pools = layout.pools().map(|p| p.pages.saturating_mul(p.page_bytes));
        let states = layout.states().map(|s| s.slots.saturating_mul(s.len * 4));
        let steps = steps.iter().map(|p| {
            let io = p.step.graph.buffers.iter().filter(|b| matches!(b.class, Class::Input | Class::Output));
            io.map(|b| b.bytes).sum::<usize>().saturating_mul(1 + RING).saturating_add(p.plan.arena_bytes)
        });
        pools.chain(states).chain(steps).fold(0, usize::saturating_add)
    }

    /// Zeroed caches for `layout` and memory for each step.
    #[must_use]
    pub fn new(layout: &CacheLayout, steps: Vec<Prepared>, weights: W, run: RunStep<W, E>) -> Self {
        let resident = Resident {
            pools: layout.pools().map(|p| Bytes::zeroed(p.pages * p.page_bytes)).collect(),
            states: layout.states().map(|s| Bytes::zeroed(s.slots * s.len * 4)).collect(),
        };
        let memory: Vec<_> = steps.iter().map(|p| Memory::new(&p.step.graph, &p.plan)).collect();
        let ring = memory.iter().map(|m| std::array::from_fn(|_| m.io.clone())).collect();
        Self { weights, run, steps: steps.into(), memory, ring, launched: VecDeque::new(), resident }
    }
}

impl<W: Send, E: std::fmt::Display> HostDevice<W, E> {
    fn run(&mut self, step: usize, slot: usize, wanted: &Wanted) -> Result<(), String> {
        let Prepared { step: model, plan, .. } = &self.steps[step];
        let (memory, host) = (&mut self.memory[step], &mut self.ring[step][slot]);
        memory.inputs_mut().copy_from_slice(host.inputs());
        (self.run)(&model.graph, plan, memory, &mut self.resident, &self.weights)
            .map_err(|error| error.to_string())?;
        for range in wanted.ranges(model, host) {
            host.outputs_mut()[range.clone()].copy_from_slice(&memory.outputs()[range]);
        }
        Ok(())
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

    fn rerun(&mut self, step: usize, io: &mut HostIo, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        let Prepared { step: model, plan, .. } = &self.steps[step];
        let memory = &mut self.memory[step];
        memory.inputs_mut().copy_from_slice(io.inputs());
        run_in_pieces(&model.graph, tampers, |piece| match piece {
            Piece::Edit(value, edit) => {
                edit_host(plan, memory, value, edit);
                Ok(())
            }
            Piece::Run(graph) => (self.run)(graph, plan, memory, &mut self.resident, &self.weights)
                .map_err(|error| error.to_string()),
        })?;
        io.outputs_mut().copy_from_slice(memory.outputs());
        Ok(())
    }

    fn run_tampered(&mut self, step: usize, slot: usize, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        let mut io = std::mem::take(&mut self.ring[step][slot]);
        let ran = self.rerun(step, &mut io, tampers);
        self.ring[step][slot] = io;
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

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        &mut self.ring[step][slot]
    }

    fn launch(&mut self, step: usize, slot: usize, wanted: &Wanted) -> Result<(), String> {
        self.launched.push_back((step, slot, wanted.clone()));
        Ok(())
    }

    fn wait(&mut self, step: usize, slot: usize) -> Result<(), String> {
        while self.launched.iter().any(|l| (l.0, l.1) == (step, slot)) {
            let Some((step, slot, wanted)) = self.launched.pop_front() else { return Ok(()) };
            self.run(step, slot, &wanted)?;
        }
        Ok(())
    }
}
