//! Memory of steps on a device, beside the host's: caches, arena, inputs and outputs.

use std::sync::Arc;

use super::{Backend, CudaError, DeviceBuffer};
use crate::instrument::Store;
use crate::model::CacheLayout;
use crate::ops::{BufferId, Value};
use crate::step::{Bytes, Graph, HostIo, HostPlace, Memory, Plan, PoolId, Resident};

/// Pools and states on the device.
#[derive(Debug)]
pub struct DeviceResident {
    pub(super) pools: Vec<DeviceBuffer>,
    pub(super) states: Vec<DeviceBuffer>,
}

impl DeviceResident {
    /// Empty caches of a layout.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn zeroed(backend: &Arc<dyn Backend>, layout: &CacheLayout) -> Result<Self, CudaError> {
        let pools = layout.pools().map(|p| DeviceBuffer::zeroed(backend, p.pages * p.page_bytes));
        let states = layout.states().map(|s| DeviceBuffer::zeroed(backend, s.slots * s.len * 4));
        Ok(Self { pools: pools.collect::<Result<_, _>>()?, states: states.collect::<Result<_, _>>()? })
    }

    #[must_use]
    pub fn pool(&self, id: PoolId) -> Option<&DeviceBuffer> {
        self.pools.get(id.0 as usize)
    }

    /// The memory of a pool or state.
    pub(crate) fn store(&self, store: Store) -> Option<&DeviceBuffer> {
        match store {
            Store::Pool(id) => self.pools.get(id.0 as usize),
            Store::State(id) => self.states.get(id.0 as usize),
        }
    }

    /// A copy of the host's.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn upload(backend: &Arc<dyn Backend>, host: &Resident) -> Result<Self, CudaError> {
        let copy = |all: &[Bytes]| -> Result<Vec<DeviceBuffer>, CudaError> {
            all.iter().map(|b| DeviceBuffer::from_bytes(backend, b)).collect()
        };
        Ok(Self { pools: copy(&host.pools)?, states: copy(&host.states)? })
    }

    /// Copies back over the host's.
    ///
    /// # Errors
    /// [`CudaError::Driver`], or [`CudaError::Range`] if the host's has another size.
    pub fn download(&self, host: &mut Resident) -> Result<(), CudaError> {
        let all = self.pools.iter().chain(&self.states).zip(host.pools.iter_mut().chain(&mut host.states));
        all.into_iter().try_for_each(|(from, to)| from.download(0, to))
    }
}

/// A step's own memory on the device: its arena, and its inputs and outputs in one block each.
#[derive(Debug)]
pub struct DeviceStep {
    pub(super) arena: DeviceBuffer,
    inputs: DeviceBuffer,
    outputs: DeviceBuffer,
    /// By buffer.
    places: Vec<Option<HostPlace>>,
}

impl DeviceStep {
    /// A copy of the host's.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn upload(backend: &Arc<dyn Backend>, graph: &Graph, memory: &Memory) -> Result<Self, CudaError> {
        Ok(Self {
            arena: DeviceBuffer::from_bytes(backend, &memory.arena)?,
            inputs: DeviceBuffer::from_bytes(backend, memory.inputs())?,
            outputs: DeviceBuffer::from_bytes(backend, memory.outputs())?,
            places: graph.buffer_ids().map(|id| memory.place(id).cloned()).collect(),
        })
    }

    /// The block of all inputs.
    #[must_use]
    pub fn inputs(&self) -> &DeviceBuffer {
        &self.inputs
    }

    /// The block of all outputs.
    #[must_use]
    pub fn outputs(&self) -> &DeviceBuffer {
        &self.outputs
    }

    /// Where an input or output lies: address and bytes.
    pub(super) fn host(&self, id: BufferId) -> Option<(u64, usize)> {
        let (block, range) = match self.places.get(id.0 as usize)?.as_ref()? {
            HostPlace::Input(range) => (&self.inputs, range),
            HostPlace::Output(range) => (&self.outputs, range),
        };
        (range.end <= block.len()).then(|| (block.address() + range.start as u64, range.len()))
    }

    /// Where a value of the step lies: its buffer and the byte there.
    pub(crate) fn value(&self, plan: &Plan, value: &Value) -> Option<(&DeviceBuffer, usize)> {
        if let Some(at) = plan.offsets.get(value.buffer.0 as usize).copied().flatten() {
            return Some((&self.arena, at));
        }
        match self.places.get(value.buffer.0 as usize)?.as_ref()? {
            HostPlace::Input(range) => Some((&self.inputs, range.start)),
            HostPlace::Output(range) => Some((&self.outputs, range.start)),
        }
    }

    /// Copies inputs to the device.
    ///
    /// # Errors
    /// [`CudaError::Driver`] or [`CudaError::Range`].
    pub fn write_inputs(&self, host: &HostIo) -> Result<(), CudaError> {
        self.inputs.upload(0, host.inputs())
    }

    /// Copies outputs to the host.
    ///
    /// # Errors
    /// [`CudaError::Driver`] or [`CudaError::Range`].
    pub fn read_outputs(&self, host: &mut HostIo) -> Result<(), CudaError> {
        self.outputs.download(0, host.outputs_mut())
    }

    /// Copies the arena to the host: for tests and instruments.
    ///
    /// # Errors
    /// [`CudaError::Driver`] or [`CudaError::Range`].
    pub fn read_arena(&self, memory: &mut Memory) -> Result<(), CudaError> {
        self.arena.download(0, &mut memory.arena)
    }
}
