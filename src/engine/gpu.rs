//! Steps on a GPU: captured graphs or eager launches, lanes side by side or one after another.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::bucket::{Prepared, RING};
use super::device::{Device, Wanted};
use super::handle::{Engine, EngineConfig};
use super::local::LocalError;
use crate::checkpoint::Checkpoint;
use crate::cuda::{
    Backend, CudaError, DeviceBuffer, DeviceResident, DeviceStep, DeviceWeights, Executor, Fence, Hasher,
    Options, Ready, RunMode, Staging, Uncertified,
};
use crate::instrument::{Piece, Probe, Span, Store, Tamper, run_in_pieces};
use crate::model::{CacheLayout, ModelWeights, load};
use crate::step::{Bytes, Graph, HostIo, Memory, Mutant, NodeId, Plan, Program, Random, prove};

/// How an engine uses its GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuConfig {
    pub options: Options,
    pub mode: RunMode,
    /// Runs something that no proof allows.
    pub forced: Option<Forced>,
    /// Where the time between steps is noted, if anywhere.
    pub idle: Option<IdleLog>,
}

/// Microseconds that a GPU had nothing to do between two steps: from the last copy out of one to the first copy in of the
/// next, a request's absence included.
#[derive(Clone, Debug, Default)]
pub struct IdleLog(Arc<Mutex<Vec<f32>>>);

impl IdleLog {
    /// What was noted so far, sorted.
    #[must_use]
    pub fn sorted(&self) -> Vec<f32> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.sort_by(f32::total_cmp);
        all
    }

    fn note(&self, microseconds: f32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(microseconds);
    }
}

/// What to force, for the stress harness: no server is built on this.
#[derive(Clone, Debug)]
pub struct Forced {
    /// A known bug, in every step that has a place for it; `None`: the steps as they are.
    pub mutant: Option<Mutant>,
    /// Microseconds that a stream is kept busy: before the node that the mutant lets others overtake, or without a mutant
    /// before nodes drawn from the seed.
    pub delay: Option<(u32, u64)>,
}

/// Nodes that are held back in a step without a mutant.
const DRAWN: usize = 6;

/// A step as it runs: what is ready goes before the memory that it uses.
struct Loaded {
    ready: Ready,
    /// What runs in the place of the proved step.
    graph: Graph,
    plan: Plan,
    ring: [Slot; RING],
    device: DeviceStep,
}

/// A slot of the ring: what the host sees, and what copies run from and to meanwhile.
struct Slot {
    /// Until it is waited for, the step uses the staging memory: so it comes first and goes first.
    under_way: Option<UnderWay>,
    inputs: Box<dyn Staging>,
    outputs: Box<dyn Staging>,
    host: HostIo,
}

struct UnderWay {
    /// Before the first copy, where idle time is noted.
    begun: Option<Box<dyn Fence>>,
    fence: Box<dyn Fence>,
    /// Of the outputs' block.
    wanted: Vec<Range<usize>>,
}

impl Slot {
    fn new(backend: &dyn Backend, host: &HostIo) -> Result<Self, CudaError> {
        let (inputs, outputs) =
            (backend.staging(host.inputs().len())?, backend.staging(host.outputs().len())?);
        Ok(Self { under_way: None, inputs, outputs, host: host.clone() })
    }

    fn wait(&mut self) -> Result<Option<UnderWay>, CudaError> {
        let Some(under_way) = self.under_way.take() else { return Ok(None) };
        under_way.fence.wait()?;
        for range in under_way.wanted.iter().cloned() {
            self.host.outputs_mut()[range.clone()].copy_from_slice(&self.outputs.bytes()[range]);
        }
        Ok(Some(under_way))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Copies may still be under way. An error is the device's, and then nothing runs any more.
        let _ = self.wait();
    }
}

impl Loaded {
    /// Starts copies in, the step, and copies out, in this order on one stream.
    fn launch(
        &mut self,
        executor: &Executor,
        (slot, timed): (usize, bool),
        wanted: impl FnOnce(&HostIo) -> Vec<Range<usize>>,
    ) -> Result<(), CudaError> {
        let Slot { under_way, inputs, outputs, host } = &mut self.ring[slot];
        let wanted = wanted(host);
        inputs.bytes_mut().copy_from_slice(host.inputs());
        let begun = timed.then(|| executor.backend.fence()).transpose()?;
        // SAFETY: the staging memory lives, and is left alone, until the fence below is waited for, in `Slot::wait`.
        unsafe { self.device.inputs().start_upload(inputs.bytes()) }?;
        executor.start(&self.ready)?;
        for range in &wanted {
            let to = &mut outputs.bytes_mut()[range.clone()];
            // SAFETY: the same.
            unsafe { self.device.outputs().start_download(range.start, to) }?;
        }
        *under_way = Some(UnderWay { begun, fence: executor.backend.fence()?, wanted });
        Ok(())
    }
}

/// Prepared steps whose pools, states, arenas and weights are on a device.
struct GpuDevice {
    loaded: Vec<Loaded>,
    idle: Option<IdleLog>,
    /// The end of the step that was waited for last.
    last: Option<Box<dyn Fence>>,
    /// Kept for as long as the steps point into it.
    resident: DeviceResident,
    hasher: Hasher,
    /// Nothing can be changed inside a step that replays.
    captured: bool,
    executor: Executor,
    steps: Arc<[Prepared]>,
}

impl GpuDevice {
    fn new(
        executor: Executor,
        layout: &CacheLayout,
        steps: Vec<Prepared>,
        config: &GpuConfig,
    ) -> Result<Self, Uncertified> {
        let resident = DeviceResident::zeroed(&executor.backend, layout)?;
        let begun = Instant::now();
        let mut loaded = Vec::with_capacity(steps.len());
        for (at, step) in steps.iter().enumerate() {
            let one = load_step(&executor, &resident, step, config)?;
            if let Some(found) = one.ready.certificate {
                let (done, of) = (at + 1, steps.len());
                tracing::info!(
                    step = %step.step.shape, done, of, nodes = found.proved.nodes, edges = found.proved.edges,
                    programmatic = found.programmatic, pairs = found.proved.pairs, pointers = found.pointers,
                    fingerprint = format!("{:016x}", found.fingerprint), "captured, read back and proved"
                );
            }
            loaded.push(one);
        }
        let arena: usize = steps.iter().map(|s| s.plan.arena_bytes).sum();
        tracing::info!(
            steps = steps.len(),
            arena_bytes = arena,
            seconds = begun.elapsed().as_secs_f32(),
            "steps are ready"
        );
        Ok(Self {
            loaded,
            idle: config.idle.clone(),
            last: None,
            resident,
            hasher: Hasher::default(),
            captured: config.mode.captured,
            executor,
            steps: steps.into(),
        })
    }
}

fn load_step(
    executor: &Executor,
    resident: &DeviceResident,
    step: &Prepared,
    config: &GpuConfig,
) -> Result<Loaded, Uncertified> {
    let (graph, plan) = copy(step, config);
    let memory = Memory::new(&graph, &plan);
    let device = DeviceStep::upload(&executor.backend, &graph, &memory)?;
    let place = (&device, resident);
    let ready = match &config.forced {
        None => executor.ready(&graph, &plan, place, config.mode)?,
        Some(forced) => {
            let delays = delays(&graph, &plan, forced);
            executor.ready_unproved(&graph, &plan, place, (config.mode, &delays))?
        }
    };
    let slots = [(); RING].map(|()| Slot::new(executor.backend.as_ref(), &memory));
    let ring = slots.into_iter().collect::<Result<Vec<_>, _>>()?;
    let ring = ring
        .try_into()
        .map_err(|_| CudaError::Unsupported { op: "ring", what: "another number of slots" })?;
    Ok(Loaded { ready, graph, plan, ring, device })
}

/// What runs in the place of a proved step.
fn copy(step: &Prepared, config: &GpuConfig) -> (Graph, Plan) {
    let (graph, plan) = (&step.step.graph, &step.plan);
    let mutant = config.forced.as_ref().and_then(|f| f.mutant);
    let mutated = mutant.and_then(|m| m.apply(graph, plan));
    mutated.map_or_else(|| (graph.clone(), plan.clone()), |m| (m.graph, m.plan))
}

/// Where a forced step is held back.
fn delays(graph: &Graph, plan: &Plan, forced: &Forced) -> BTreeMap<NodeId, u32> {
    let Some((microseconds, seed)) = forced.delay else { return BTreeMap::new() };
    if forced.mutant.is_none() {
        let mut random = Random::new(seed);
        let node = |random: &mut Random| NodeId(u32::try_from(random.below(graph.nodes.len())).unwrap_or(0));
        return (0..DRAWN).map(|_| (node(&mut random), microseconds)).collect();
    }
    let unwaited = graph.edges.iter().find(|e| !graph.node(e.to).waits);
    if let Some(edge) = unwaited {
        return BTreeMap::from([(edge.from, microseconds)]);
    }
    let hazards = prove(&Program::of(graph, plan)).err().unwrap_or_default();
    let overtaken = hazards.iter().find(|h| h.second.is_some()).map(|h| (h.first.node, microseconds));
    overtaken.into_iter().collect()
}

/// As instruments see it. The second run of a step is eager and serial, on the device memory of the first.
impl Probe for GpuDevice {
    fn read(&mut self, store: Store, offset: usize, into: &mut [u8]) -> Result<(), String> {
        let buffer = self.store(store)?;
        buffer.download(offset, into).map_err(|error| error.to_string())
    }

    fn write(&mut self, store: Store, offset: usize, from: &[u8]) -> Result<(), String> {
        let buffer = self.store(store)?;
        buffer.upload(offset, from).map_err(|error| error.to_string())
    }

    fn hashes(&mut self, spans: &[Span]) -> Result<Vec<u64>, String> {
        let hashes = self.hasher.hashes(&self.executor.backend, &self.resident, spans);
        hashes.map_err(|error| error.to_string())
    }

    fn rerun(&mut self, step: usize, io: &mut HostIo, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        let Loaded { graph, plan, device, .. } = &self.loaded[step];
        let (executor, resident) = (&self.executor, &self.resident);
        let words = |error: CudaError| error.to_string();
        device.write_inputs(io).map_err(words)?;
        run_in_pieces(graph, tampers, |piece| match piece {
            Piece::Run(graph) => executor.run(graph, plan, device, resident).map_err(words),
            Piece::Edit(value, edit) => {
                let (buffer, at) =
                    device.value(plan, &value).ok_or("the value has no place on the device")?;
                let mut bytes = Bytes::zeroed(value.bytes());
                buffer.download(at, &mut bytes).map_err(words)?;
                edit(&mut bytes);
                buffer.upload(at, &bytes).map_err(words)
            }
        })?;
        device.read_outputs(io).map_err(words)
    }

    fn run_tampered(&mut self, step: usize, slot: usize, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        if self.captured {
            return Err(
                "a step that replays a captured graph takes no fault inside it: use --graph off, or a \
                        fault between steps (page, byte, row)"
                    .to_owned(),
            );
        }
        let mut io = std::mem::take(&mut self.loaded[step].ring[slot].host);
        let ran = self.rerun(step, &mut io, tampers);
        self.loaded[step].ring[slot].host = io;
        ran
    }
}

impl GpuDevice {
    fn store(&self, store: Store) -> Result<&DeviceBuffer, String> {
        self.resident.store(store).ok_or_else(|| format!("{store:?}: the device has no such store"))
    }
}

impl Device for GpuDevice {
    fn probe(&mut self) -> Option<&mut dyn Probe> {
        Some(self)
    }

    fn steps(&self) -> Arc<[Prepared]> {
        Arc::clone(&self.steps)
    }

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        &mut self.loaded[step].ring[slot].host
    }

    fn launch(&mut self, step: usize, slot: usize, wanted: &Wanted) -> Result<(), String> {
        let (model, timed) = (&self.steps[step].step, self.idle.is_some());
        self.loaded[step]
            .launch(&self.executor, (slot, timed), |host| wanted.ranges(model, host))
            .map_err(|e| e.to_string())
    }

    fn wait(&mut self, step: usize, slot: usize) -> Result<(), String> {
        let ended = self.loaded[step].ring[slot].wait().map_err(|e| e.to_string())?;
        let (Some(log), Some(UnderWay { begun: Some(begun), fence, .. })) = (&self.idle, ended) else {
            return Ok(());
        };
        if let Some(idle) = self.last.as_deref().and_then(|last| begun.since(last)) {
            log.note(idle);
        }
        self.last = Some(fence);
        Ok(())
    }
}

impl Engine {
    /// Loads the weights onto a device, builds, plans and proves every step (a captured one as it was read back), and starts.
    ///
    /// # Errors
    /// [`LocalError`], in sentences.
    pub fn on_gpu(
        checkpoint: &Checkpoint,
        config: EngineConfig,
        backend: Arc<dyn Backend>,
        gpu: &GpuConfig,
    ) -> Result<Self, LocalError> {
        config.check()?;
        let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
        let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
        let steps = config.prepare(&weights, &layout)?;
        let loaded = DeviceWeights::load(&backend, &load(&registry, checkpoint)?, &weights.stacks())?;
        let executor = Executor { backend, weights: loaded, options: gpu.options };
        let device = GpuDevice::new(executor, &layout, steps, gpu)?;
        Ok(Self::start(config, layout, Box::new(device))?)
    }
}
