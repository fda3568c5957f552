//! Steps on a device: their nodes launched eagerly or as a captured graph, on one stream or with each lane on its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    Backend, Bindings, Capture, Certificate, CudaError, DeviceBuffer, DeviceResident, DeviceStep,
    DeviceWeights, Evidence, Fault, Fence, Launch, Options, Place, Replay, Route, Script, Uncertified,
    delay::delay_launch, launch,
};
use crate::ops::BufferId;
use crate::step::{Class, Edge, Graph, Memory, NodeId, Plan, Program, Resident, programmatic, prove, serial};

/// How steps run. No choice changes a bit of any result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunMode {
    /// Replays a captured graph; else launches every node anew.
    pub captured: bool,
    /// Lanes side by side; else one after another.
    pub forked: bool,
    /// Kernels may begin while their predecessors run, and wait for them themselves.
    pub programmatic: bool,
}

impl RunMode {
    /// The graph whose edges this mode keeps.
    #[must_use]
    pub fn scheduled(self, graph: &Graph) -> Graph {
        let graph = if self.forked { graph.clone() } else { serial(graph) };
        if self.programmatic { programmatic(graph) } else { graph }
    }

    fn route(self, scheduled: &Graph) -> Route {
        if self.forked { Route::forked(scheduled) } else { Route::serial(scheduled) }
    }
}

/// A step with its memory, ready to run any number of times.
#[derive(Debug)]
pub struct Ready {
    script: Script,
    replay: Option<Box<dyn Replay>>,
    /// What is known of a captured graph; `None` if the step runs eagerly.
    pub certificate: Option<Certificate>,
}

/// A captured step and what its reading shows.
struct Captured {
    script: Script,
    capture: Box<dyn Capture>,
    certificate: Result<Certificate, Uncertified>,
}

/// Microseconds in which the host queues a launch and an event.
const QUEUING_US: u32 = 20;

/// Runs steps on a backend.
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
        self.bound_launches(graph, places(graph, plan, step, resident), false)
    }

    fn bound_launches(
        &self,
        graph: &Graph,
        buffers: Vec<Option<(u64, usize)>>,
        displaced: bool,
    ) -> Result<Vec<Launch>, CudaError> {
        let (multiprocessors, shared_memory) = (self.backend.multiprocessors(), self.backend.shared_memory());
        let weights = &self.weights;
        let bindings = Bindings { graph, buffers, weights, multiprocessors, shared_memory, displaced };
        let one = |node: &crate::step::Node| {
            let launch = launch(&node.op, &bindings, self.options)?;
            if node.waits { Ok(launch) } else { launch.with(Fault::Unwaited) }
        };
        graph.nodes.iter().map(one).collect()
    }

    /// Makes a step ready in a mode, proved for it: a captured graph on the edges that were read back. Valid as long as
    /// `step`, `resident` and the weights.
    ///
    /// # Errors
    /// [`Uncertified`]: it must not run.
    pub fn ready(
        &self,
        graph: &Graph,
        plan: &Plan,
        (step, resident): (&DeviceStep, &DeviceResident),
        mode: RunMode,
    ) -> Result<Ready, Uncertified> {
        let scheduled = mode.scheduled(graph);
        prove(&Program::of(&scheduled, plan)).map_err(Uncertified::Hazards)?;
        if !mode.captured {
            let script = self.script(graph, &places(graph, plan, step, resident), &scheduled, mode, false)?;
            return Ok(Ready { script, replay: None, certificate: None });
        }
        let Captured { script, capture, certificate } = self.captured(graph, plan, (step, resident), mode)?;
        Ok(Ready { script, replay: Some(capture.instantiate()?), certificate: Some(certificate?) })
    }

    /// Captures a step, reads it back, and judges what was read, whether the step as declared is proved or not.
    ///
    /// # Errors
    /// [`Uncertified`].
    pub fn read_back(
        &self,
        graph: &Graph,
        plan: &Plan,
        place: (&DeviceStep, &DeviceResident),
        mode: RunMode,
    ) -> Result<Certificate, Uncertified> {
        self.captured(graph, plan, place, mode)?.certificate
    }

    fn captured(
        &self,
        graph: &Graph,
        plan: &Plan,
        (step, resident): (&DeviceStep, &DeviceResident),
        mode: RunMode,
    ) -> Result<Captured, CudaError> {
        let scheduled = mode.scheduled(graph);
        let places = places(graph, plan, step, resident);
        let script = |displaced| self.script(graph, &places, &scheduled, mode, displaced);
        let capture = |script| {
            // SAFETY: `bound_launches` checked every operand; the displaced capture is read and dropped, never run.
            unsafe { Arc::clone(&self.backend).capture(script) }
        };
        let first = script(false)?;
        let (capture, displaced) = (capture(first.clone())?, capture(script(true)?)?);
        let evidence = Evidence {
            graph: &scheduled,
            plan,
            launches: &first.launches,
            reading: &capture.read()?,
            displaced: &displaced.read()?,
            places: &self.all_places(graph, &places),
        };
        let certificate = evidence.certify();
        Ok(Captured { script: first, capture, certificate })
    }

    fn script(
        &self,
        graph: &Graph,
        places: &[Option<(u64, usize)>],
        scheduled: &Graph,
        mode: RunMode,
        displaced: bool,
    ) -> Result<Script, CudaError> {
        let launches = self.bound_launches(graph, places.to_vec(), displaced)?;
        Ok(Script { launches, route: mode.route(scheduled), delays: BTreeMap::new() })
    }

    /// As [`ready`](Self::ready), with nothing proved: for known bugs, run on purpose, and for benchmarks. `delays` holds nodes
    /// back for so many microseconds: their stream is kept busy before them, or, where a kernel that does not wait follows, they
    /// themselves take long once it may begin.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn ready_unproved(
        &self,
        graph: &Graph,
        plan: &Plan,
        (step, resident): (&DeviceStep, &DeviceResident),
        (mode, delays): (RunMode, &BTreeMap<NodeId, u32>),
    ) -> Result<Ready, CudaError> {
        let scheduled = mode.scheduled(graph);
        let places = places(graph, plan, step, resident);
        let mut script = self.script(graph, &places, &scheduled, mode, false)?;
        for (node, microseconds) in delays {
            let at = node.0 as usize;
            let unwaited = |e: &Edge| e.from == *node && !graph.node(e.to).waits;
            if graph.edges.iter().any(unwaited) {
                script.launches[at] = script.launches[at].clone().with(Fault::Slow)?;
            } else {
                script.delays.insert(at, *microseconds);
            }
        }
        if !mode.captured {
            return Ok(Ready { script, replay: None, certificate: None });
        }
        // SAFETY: as in `ready`. A wrong order gives wrong values, never a wrong address.
        let capture = unsafe { Arc::clone(&self.backend).capture(script.clone())? };
        Ok(Ready { script, replay: Some(capture.instantiate()?), certificate: None })
    }

    /// Where every buffer lies, those of weights included.
    fn all_places(&self, graph: &Graph, places: &[Option<(u64, usize)>]) -> Vec<Vec<Place>> {
        let of = |(buffer, place): (&crate::step::Buffer, &Option<(u64, usize)>)| match buffer.class {
            Class::Weight(id) => self.weights.get(id).map_or_else(Vec::new, |w| {
                w.buffers().map(|b| Place { address: b.address(), bytes: b.len() }).collect()
            }),
            _ => place.iter().map(|&(address, bytes)| Place { address, bytes }).collect(),
        };
        graph.buffers.iter().zip(places).map(of).collect()
    }

    /// Starts a step that was made ready.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn start(&self, ready: &Ready) -> Result<(), CudaError> {
        match &ready.replay {
            // SAFETY: `ready` was made from operands that lie within buffers which live as long as it does, as its
            // owner keeps it with them.
            Some(graph) => unsafe { graph.replay() },
            // SAFETY: the same.
            None => unsafe { self.backend.issue(&ready.script) },
        }
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

    /// Times every node of a step: microseconds of each, eager and one after another, the time between two kernels included.
    /// The host queues them while the stream is held back, so that they follow each other without a gap.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`CudaError::Unsupported`] off a GPU.
    pub fn profile(
        &self,
        graph: &Graph,
        plan: &Plan,
        (step, resident): (&DeviceStep, &DeviceResident),
    ) -> Result<Vec<f32>, CudaError> {
        let launches = self.launches(graph, plan, step, resident)?;
        let ahead = u32::try_from(launches.len()).unwrap_or(u32::MAX).saturating_mul(QUEUING_US);
        let mut fences = Vec::with_capacity(launches.len() + 1);
        // SAFETY: as in `run`, for this launch and those below; the last fence is waited for.
        unsafe { self.backend.launch(&delay_launch(ahead))? };
        fences.push(self.backend.fence()?);
        for launch in &launches {
            // SAFETY: the same.
            unsafe { self.backend.launch(launch)? };
            fences.push(self.backend.fence()?);
        }
        self.backend.synchronize()?;
        let between = |pair: &[Box<dyn Fence>]| pair[1].since(&*pair[0]);
        let times: Option<Vec<f32>> = fences.windows(2).map(between).collect();
        times.ok_or(CudaError::Unsupported { op: "profile", what: "timing off a GPU" })
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
        step.read_outputs(memory)?;
        device.download(resident)
    }
}

/// Where each buffer but the weights lies: address and bytes.
fn places(
    graph: &Graph,
    plan: &Plan,
    step: &DeviceStep,
    resident: &DeviceResident,
) -> Vec<Option<(u64, usize)>> {
    let place = |buffer: &DeviceBuffer| (buffer.address(), buffer.len());
    let of = |id: BufferId| {
        let buffer = graph.buffer(id);
        match buffer.class {
            Class::Weight(_) => None,
            Class::Pool(pool) => resident.pools.get(pool.0 as usize).map(place),
            Class::State(state) => resident.states.get(state.0 as usize).map(place),
            Class::Input | Class::Output => step.host(id),
            Class::Transient => {
                let start = plan.offsets.get(id.0 as usize).copied().flatten()?;
                let inside = start + buffer.bytes <= step.arena.len();
                inside.then_some((step.arena.address() + start as u64, buffer.bytes))
            }
        }
    };
    graph.buffer_ids().map(of).collect()
}
