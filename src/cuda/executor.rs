//! Steps on a device: their memory beside the host's, and their nodes launched in append order on one stream.

use std::sync::Arc;

use super::{Backend, Bindings, CudaError, DeviceBuffer, DeviceWeights, Launch, Options, launch};
use crate::step::{Bytes, Class, Graph, HostIo, Memory, Plan, Resident};

/// Pools and states on the device.
#[derive(Debug)]
pub struct DeviceResident {
    pools: Vec<DeviceBuffer>,
    states: Vec<DeviceBuffer>,
}

impl DeviceResident {
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

/// A step's own memory on the device: arena, inputs and outputs.
#[derive(Debug)]
pub struct DeviceStep {
    arena: DeviceBuffer,
    host: Vec<Option<DeviceBuffer>>,
}

impl DeviceStep {
    /// A copy of the host's.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn upload(backend: &Arc<dyn Backend>, graph: &Graph, memory: &Memory) -> Result<Self, CudaError> {
        let host = graph.buffer_ids().map(|id| match graph.buffer(id).class {
            Class::Input | Class::Output => {
                DeviceBuffer::from_bytes(backend, memory.host_bytes(id)).map(Some)
            }
            _ => Ok(None),
        });
        let host = host.collect::<Result<_, _>>()?;
        Ok(Self { arena: DeviceBuffer::from_bytes(backend, &memory.arena)?, host })
    }

    /// Copies inputs to the device.
    ///
    /// # Errors
    /// [`CudaError::Driver`] or [`CudaError::Range`].
    pub fn write_inputs(&self, graph: &Graph, memory: &HostIo) -> Result<(), CudaError> {
        for (id, buffer) in graph.buffer_ids().zip(&self.host) {
            if let (Class::Input, Some(buffer)) = (graph.buffer(id).class, buffer) {
                buffer.upload(0, memory.host_bytes(id))?;
            }
        }
        Ok(())
    }

    /// Copies outputs to the host.
    ///
    /// # Errors
    /// [`CudaError::Driver`] or [`CudaError::Range`].
    pub fn read_outputs(&self, graph: &Graph, memory: &mut HostIo) -> Result<(), CudaError> {
        for (id, buffer) in graph.buffer_ids().zip(&self.host) {
            if let (Class::Output, Some(buffer)) = (graph.buffer(id).class, buffer) {
                buffer.download(0, memory.host_bytes_mut(id))?;
            }
        }
        Ok(())
    }

    /// Copies the arena to the host: for tests and instruments.
    ///
    /// # Errors
    /// [`CudaError::Driver`] or [`CudaError::Range`].
    pub fn read_arena(&self, memory: &mut Memory) -> Result<(), CudaError> {
        self.arena.download(0, &mut memory.arena)
    }
}

/// Runs steps on a backend, one node after another.
#[derive(Debug)]
pub struct Executor {
    pub backend: Arc<dyn Backend>,
    pub weights: DeviceWeights,
    pub options: Options,
}

impl Executor {
    /// The launches of a step, in append order: valid as long as `step`, `resident` and the weights.
    ///
    /// # Errors
    /// The first node's [`CudaError`].
    pub fn launches(
        &self,
        graph: &Graph,
        plan: &Plan,
        step: &DeviceStep,
        resident: &DeviceResident,
    ) -> Result<Vec<Launch>, CudaError> {
        let place = |buffer: &DeviceBuffer| (buffer.address(), buffer.len());
        let buffers = graph.buffer_ids().map(|id| {
            let buffer = graph.buffer(id);
            match buffer.class {
                Class::Weight(_) => None,
                Class::Pool(pool) => resident.pools.get(pool.0 as usize).map(place),
                Class::State(state) => resident.states.get(state.0 as usize).map(place),
                Class::Input | Class::Output => step.host.get(id.0 as usize)?.as_ref().map(place),
                Class::Transient => {
                    let start = plan.offsets.get(id.0 as usize).copied().flatten()?;
                    let inside = start + buffer.bytes <= step.arena.len();
                    inside.then_some((step.arena.address() + start as u64, buffer.bytes))
                }
            }
        });
        let bindings = Bindings {
            graph,
            buffers: buffers.collect(),
            weights: &self.weights,
            multiprocessors: self.backend.multiprocessors(),
        };
        graph.nodes.iter().map(|node| launch(&node.op, &bindings, self.options)).collect()
    }

    /// Runs a step whose memory is on the device.
    ///
    /// # Errors
    /// The first node's [`CudaError`], before anything was launched; or the backend's.
    pub fn run(
        &self,
        graph: &Graph,
        plan: &Plan,
        step: &DeviceStep,
        resident: &DeviceResident,
    ) -> Result<(), CudaError> {
        for launch in self.launches(graph, plan, step, resident)? {
            // SAFETY: `ops` made the launch from operands that lie within buffers which outlive this call's work: it is
            // waited for below, and on an error the buffers' own release waits.
            unsafe { self.backend.launch(&launch)? };
        }
        self.backend.synchronize()
    }

    /// Times a step as one captured graph: microseconds of each replay. `cold` clears the second-level cache before each
    /// by writing 128 MiB.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`CudaError::Unsupported`] off a GPU.
    pub fn time(
        &self,
        graph: &Graph,
        plan: &Plan,
        (step, resident): (&DeviceStep, &DeviceResident),
        cold: bool,
        repeats: usize,
    ) -> Result<Vec<f32>, CudaError> {
        let launches = self.launches(graph, plan, step, resident)?;
        let sizes = if cold { [32 << 20, 2 << 20, 128 << 20] } else { [16, 1, 64] };
        let [codes, scales, out] = sizes.map(|bytes| DeviceBuffer::new(&self.backend, bytes));
        let (codes, scales, out) = (codes?, scales?, out?);
        let clear = super::fp4::dequantize_bf16_launch(super::Fp4Kind::Mxfp4, &codes, &scales, &out)?;
        // SAFETY: as in `run`; the three buffers live until the end, and every replay is waited for.
        unsafe { self.backend.replay(&[clear], &launches, repeats) }
    }

    /// Runs a step on copies of host memory, and copies everything back.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on_host_memory(
        &self,
        graph: &Graph,
        plan: &Plan,
        memory: &mut Memory,
        resident: &mut Resident,
    ) -> Result<(), CudaError> {
        let step = DeviceStep::upload(&self.backend, graph, memory)?;
        let device = DeviceResident::upload(&self.backend, resident)?;
        self.run(graph, plan, &step, &device)?;
        step.read_arena(memory)?;
        step.read_outputs(graph, memory)?;
        device.download(resident)
    }
}
