//! Steps on a GPU: eager and serial, one launch after another on one stream.

use std::collections::HashMap;
use std::sync::Arc;

use super::bucket::{Prepared, RING};
use super::device::{Device, Wanted};
use super::handle::{Engine, EngineConfig};
use super::local::LocalError;
use crate::checkpoint::Checkpoint;
use crate::cuda::{Backend, CudaError, DeviceResident, DeviceStep, DeviceWeights, Executor, Options};
use crate::model::{CacheLayout, ModelWeights, load};
use crate::step::{Bytes, HostIo, Memory, Resident};

/// Prepared steps whose pools, states, arenas and weights are on a device.
struct GpuDevice {
    executor: Executor,
    steps: Arc<[Prepared]>,
    memory: Vec<([HostIo; RING], DeviceStep)>,
    resident: DeviceResident,
}

impl GpuDevice {
    fn new(executor: Executor, layout: &CacheLayout, steps: Vec<Prepared>) -> Result<Self, CudaError> {
        let zeroed = Resident {
            pools: layout.pools().map(|p| Bytes::zeroed(p.pages * p.page_bytes)).collect(),
            states: layout.states().map(|s| Bytes::zeroed(s.slots * s.len * 4)).collect(),
        };
        let resident = DeviceResident::upload(&executor.backend, &zeroed)?;
        let memory = steps.iter().map(|p| {
            let memory = Memory::new(&p.step.graph, &p.plan);
            let device = DeviceStep::upload(&executor.backend, &p.step.graph, &memory)?;
            // Refused here rather than at the first request.
            executor.launches(&p.step.graph, &p.plan, &device, &resident)?;
            Ok((std::array::from_fn(|_| memory.io.clone()), device))
        });
        let memory = memory.collect::<Result<_, CudaError>>()?;
        Ok(Self { executor, steps: steps.into(), memory, resident })
    }
}

impl Device for GpuDevice {
    fn steps(&self) -> Arc<[Prepared]> {
        Arc::clone(&self.steps)
    }

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        &mut self.memory[step].0[slot]
    }

    fn launch(&mut self, step: usize, slot: usize, _: &Wanted) -> Result<(), String> {
        let Prepared { step: model, plan, .. } = &self.steps[step];
        let (ring, device) = &mut self.memory[step];
        let host = &mut ring[slot];
        device
            .write_inputs(&model.graph, host)
            .and_then(|()| self.executor.run(&model.graph, plan, device, &self.resident))
            .and_then(|()| device.read_outputs(&model.graph, host))
            .map_err(|error| error.to_string())
    }

    /// The step has run when its launch returns.
    fn wait(&mut self, _: usize, _: usize) -> Result<(), String> {
        Ok(())
    }
}

impl Engine {
    /// Loads the weights onto a device, builds, plans and proves every step, and starts.
    ///
    /// # Errors
    /// [`LocalError`], in sentences.
    pub fn on_gpu(
        checkpoint: &Checkpoint,
        config: EngineConfig,
        backend: Arc<dyn Backend>,
        options: Options,
    ) -> Result<Self, LocalError> {
        config.check()?;
        let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
        let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
        let steps = config.prepare(&weights, &layout)?;
        let experts: HashMap<_, _> = weights
            .layers
            .iter()
            .flat_map(|l| [l.moe.up.id, l.moe.down.id])
            .map(|id| (id, checkpoint.config.n_routed_experts))
            .collect();
        let loaded = DeviceWeights::load(&backend, &load(&registry, checkpoint)?, &experts)?;
        let executor = Executor { backend, weights: loaded, options };
        let device = GpuDevice::new(executor, &layout, steps)?;
        Ok(Self::start(config, layout, Box::new(device))?)
    }
}
