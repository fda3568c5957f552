//! The published cases of `hazards.rs` as steps of kernels: captured, read back, and refused on the edges that were read. On the
//! driver made of paper everywhere, and on a GPU where there is one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use flashlane::cuda::{
    Backend, Capture, Certificate, CudaError, DeviceResident, DeviceStep, DeviceWeight, DeviceWeights,
    Executor, Launch, MatrixFormat, Options, RunMode, Script, Uncertified,
};
use flashlane::engine::EngineConfig;
use flashlane::instrument::Instruments;
use flashlane::model::{CacheLayout, ModelWeights, load};
use flashlane::ops::{BufferId, Dtype, Epilogue, Linear, Op, Value};
use flashlane::step::{
    Buffer, Class, Edge, EdgeKind, Graph, Hazard, LaneId, LaneInfo, Memory, Node, NodeId, Plan, Resident,
    Rule, WeightId,
};

use half::bf16;

use crate::certify::Paper;
use crate::engine::{SERVED, config, model};
use crate::support::cuda::gpu;

const ROWS: usize = 8;
const WIDTH: usize = 256;
/// Of a value.
const BYTES: usize = 2 * ROWS * WIDTH;

/// A step of products with one matrix, over an arena that is laid out by hand.
struct Net {
    graph: Graph,
    plan: Plan,
}

impl Net {
    /// A step with nothing but its input and its weight.
    fn new() -> (Self, Value) {
        let mut net = Self { graph: Graph::default(), plan: Plan { offsets: Vec::new(), arena_bytes: 0 } };
        net.buffer("weight", Class::Weight(WeightId(0)), None, 2 * WIDTH * WIDTH);
        let input = net.buffer("input", Class::Input, None, BYTES);
        (net, input)
    }

    fn buffer(&mut self, name: &str, class: Class, offset: Option<usize>, bytes: usize) -> Value {
        let buffer = BufferId(u32::try_from(self.graph.buffers.len()).unwrap());
        let (dtype, len) = (Dtype::Bf16, bytes / 2);
        self.graph.buffers.push(Buffer { name: name.into(), class, dtype, shape: vec![len], bytes });
        self.plan.offsets.push(offset);
        self.plan.arena_bytes = self.plan.arena_bytes.max(offset.map_or(0, |at| at + bytes));
        Value { buffer, dtype, len }
    }

    /// A transient in one of the arena's places; two in one place share its bytes.
    fn value(&mut self, name: &str, place: usize) -> Value {
        self.buffer(name, Class::Transient, Some(place * BYTES), BYTES)
    }

    /// A kernel that reads one value and writes another.
    fn node(&mut self, lane: &str, x: Value, out: Value) -> NodeId {
        let lanes = &mut self.graph.lanes;
        let at = lanes.iter().position(|l| l.name == lane).unwrap_or_else(|| {
            let parent = (!lanes.is_empty()).then_some(LaneId(0));
            lanes.push(LaneInfo { name: lane.into(), parent });
            lanes.len() - 1
        });
        let weight = Value { buffer: BufferId(0), dtype: Dtype::Bf16, len: WIDTH * WIDTH };
        let (rows, cols_in, weight_rows) = (ROWS, WIDTH, WIDTH);
        let op = Op::Linear(Linear {
            x,
            weight,
            out,
            rows,
            cols_in,
            weight_rows,
            groups: 1,
            epilogue: Epilogue::None,
        });
        let lane = LaneId(u32::try_from(at).unwrap());
        self.graph.nodes.push(Node { op, lane, scope: "case".into(), waits: true });
        NodeId(u32::try_from(self.graph.nodes.len() - 1).unwrap())
    }

    fn order(&mut self, edges: &[(NodeId, NodeId)]) {
        let edge = |&(from, to): &(NodeId, NodeId)| Edge { from, to, kind: EdgeKind::Full };
        self.graph.edges.extend(edges.iter().map(edge));
        self.graph.edges.sort();
    }

    /// Captured on a backend, read back and judged.
    fn judged_on(&self, backend: &Arc<dyn Backend>, mode: RunMode) -> Result<Certificate, Uncertified> {
        let mut weights = DeviceWeights::default();
        let bytes = vec![0u8; 2 * WIDTH * WIDTH];
        weights.insert(WeightId(0), DeviceWeight::plain(backend, MatrixFormat::Bf16, &bytes)?);
        let executor = Executor { backend: Arc::clone(backend), weights, options: Options::default() };
        let step = DeviceStep::upload(backend, &self.graph, &Memory::new(&self.graph, &self.plan))?;
        let resident = DeviceResident::upload(backend, &Resident::default())?;
        executor.read_back(&self.graph, &self.plan, (&step, &resident), mode)
    }

    fn judged(&self, mode: RunMode) -> Vec<Result<Certificate, Uncertified>> {
        backends().iter().map(|backend| self.judged_on(backend, mode)).collect()
    }

    fn passes(&self, mode: RunMode) {
        self.judged(mode).into_iter().for_each(|judged| assert!(judged.is_ok(), "{judged:?}"));
    }

    /// What is wrong with it, the same on every backend.
    fn hazards(&self, mode: RunMode) -> Vec<Hazard> {
        let found = self.judged(mode).into_iter().map(|judged| match judged {
            Err(Uncertified::Hazards(hazards)) => hazards,
            other => panic!("{other:?}"),
        });
        let found: Vec<_> = found.collect();
        assert!(found.iter().all(|hazards| hazards == &found[0]), "{found:?}");
        found.into_iter().next().unwrap()
    }
}

fn backends() -> Vec<Arc<dyn Backend>> {
    let paper: Arc<dyn Backend> = Arc::new(Paper::new(|_, _| {}));
    std::iter::once(paper).chain(gpu()).collect()
}

const ONE_STREAM: RunMode = RunMode { captured: true, forked: false, programmatic: false };
const LANES: RunMode = RunMode { forked: true, ..ONE_STREAM };
const PDL: RunMode = RunMode { programmatic: true, ..LANES };

/// Main makes X, a side lane reads it, main puts Y over it, before the join or after it.
fn value_over_a_side_lanes_operand(after_the_join: bool) -> Net {
    let (mut net, input) = Net::new();
    let (x, y) = (net.value("x", 0), net.value("y", 0));
    let (logits, joined) = (net.value("logits", 1), net.value("joined", 2));
    let make = net.node("main", input, x);
    let side = net.node("main/side", x, logits);
    if after_the_join {
        let join = net.node("main", logits, joined);
        let over = net.node("main", joined, y);
        net.order(&[(make, side), (make, join), (side, join), (join, over)]);
    } else {
        let over = net.node("main", input, y);
        let join = net.node("main", logits, joined);
        net.order(&[(make, side), (make, over), (side, join), (over, join)]);
    }
    net
}

#[test]
fn g01_a_value_over_what_a_side_lane_reads() {
    let early = value_over_a_side_lanes_operand(false);
    for mode in [LANES, PDL] {
        let found = early.hazards(mode);
        let said = found[0].to_string();
        assert!(
            found[0].rule == Rule::Order && said.contains(" y") && said.contains("no edge orders them"),
            "{said}"
        );
        value_over_a_side_lanes_operand(true).passes(mode);
    }
    // Why switching overlap off cures the symptom.
    early.passes(ONE_STREAM);
}

#[test]
fn g02_a_programmatic_edge_to_a_kernel_that_never_waits_is_not_order() {
    let (mut net, input) = Net::new();
    let (x, y) = (net.value("x", 0), net.value("y", 1));
    let (p, s) = (net.node("main", input, x), net.node("main", x, y));
    net.order(&[(p, s)]);
    net.passes(PDL);
    net.graph.nodes[s.0 as usize].waits = false;
    let rules: Vec<Rule> = net.hazards(PDL).iter().map(|h| h.rule).collect();
    assert_eq!(rules, [Rule::Order, Rule::Value]);
    net.passes(LANES);
}

#[test]
fn g03_one_scratch_of_two_unordered_nodes() {
    let build = |second: usize| {
        let (mut net, input) = Net::new();
        let (top, a, b) = (net.value("top", 0), net.value("a", 1), net.value("b", second));
        let (left, right) = (net.value("left", 3), net.value("right", 4));
        let fork = net.node("main", input, top);
        let (make_a, make_b) = (net.node("main/a", top, a), net.node("main/b", top, b));
        let (read_a, read_b) = (net.node("main/a", a, left), net.node("main/b", b, right));
        net.order(&[(fork, make_a), (fork, make_b), (make_a, read_a), (make_b, read_b)]);
        net
    };
    for mode in [LANES, PDL] {
        let found = build(1).hazards(mode);
        assert_eq!(found[0].rule, Rule::Order, "{}", found[0]);
        build(2).passes(mode);
    }
}

#[test]
fn g13_waiting_for_a_kernel_that_did_not_wait() {
    let (mut net, input) = Net::new();
    let (x, y) = (net.value("x", 0), net.value("y", 0));
    let (seen, other) = (net.value("seen", 1), net.value("other", 2));
    let make = net.node("main", input, x);
    let p = net.node("main", x, seen);
    let s = net.node("main", input, other);
    let n = net.node("main", input, y);
    net.order(&[(make, p), (p, s), (s, n)]);
    net.passes(PDL);
    net.graph.nodes[s.0 as usize].waits = false;
    let found = net.hazards(PDL);
    assert!(
        found.iter().any(|h| h.first.node == p || h.second.as_ref().is_some_and(|t| t.node == p)),
        "{found:?}"
    );
}

/// A kernel, and one that reads what it wrote and does not wait for it, run on one input after another: replays in which the
/// second took the value of the replay before. The matrix is the identity.
fn stale(gpu: &Arc<dyn Backend>, mode: RunMode, waits: bool) -> usize {
    let (mut net, input) = Net::new();
    let x = net.value("x", 0);
    let seen = net.buffer("seen", Class::Output, None, BYTES);
    let (p, s) = (net.node("main", input, x), net.node("main", x, seen));
    net.order(&[(p, s)]);
    net.graph.nodes[s.0 as usize].waits = waits;
    let identity: Vec<bf16> =
        (0..WIDTH * WIDTH).map(|at| bf16::from_f32(f32::from(at % WIDTH == at / WIDTH))).collect();
    let mut weights = DeviceWeights::default();
    let matrix = DeviceWeight::plain(gpu, MatrixFormat::Bf16, bytemuck::cast_slice(&identity)).unwrap();
    weights.insert(WeightId(0), matrix);
    let executor = Executor { backend: Arc::clone(gpu), weights, options: Options::default() };
    let mut memory = Memory::new(&net.graph, &net.plan);
    let step = DeviceStep::upload(gpu, &net.graph, &memory).unwrap();
    let resident = DeviceResident::upload(gpu, &Resident::default()).unwrap();
    let delays = BTreeMap::from([(p, 200)]);
    let ready = executor.ready_unproved(&net.graph, &net.plan, (&step, &resident), (mode, &delays)).unwrap();
    let replay = |value: u8| {
        memory.host_mut::<bf16>(&input).fill(bf16::from_f32(f32::from(value)));
        step.write_inputs(&memory).unwrap();
        executor.start(&ready).unwrap();
        gpu.synchronize().unwrap();
        step.read_outputs(&mut memory).unwrap();
        memory.host::<bf16>(&seen).iter().any(|v| v.to_f32() != f32::from(value))
    };
    (1..=40).map(replay).filter(|stale| *stale).count()
}

/// What the proof's reading of a programmatic edge stands for on the device: also in one stream, and without a capture.
#[test]
fn g02_on_a_gpu_a_kernel_that_never_waits_reads_what_was_there_before() {
    let Some(gpu) = gpu() else { return };
    for mode in crate::gpu_engine::modes() {
        let (waited, unwaited) = (stale(&gpu, mode, true), stale(&gpu, mode, false));
        eprintln!("{mode:?}: {unwaited} of 40 stale");
        assert_eq!(waited, 0, "{mode:?}");
        assert_eq!(unwaited > 0, mode.programmatic, "{mode:?}: {unwaited} of 40 stale");
    }
}

/// What lets a captured join begin before its side lane has ended: all its edges become programmatic.
#[test]
fn g17_captured_the_joins_edges_are_programmatic() {
    let net = value_over_a_side_lanes_operand(true);
    for judged in net.judged(PDL) {
        let found = judged.unwrap();
        assert_eq!(found.programmatic, found.proved.edges, "{found:?}");
    }
    assert!(net.judged(LANES).into_iter().all(|judged| judged.unwrap().programmatic == 0));
}

/// A host that, in its second capture, launches one node with the arguments of the first.
#[derive(Debug)]
struct Repointing {
    inner: Arc<dyn Backend>,
    first: Mutex<Option<Launch>>,
}

impl Backend for Repointing {
    fn name(&self) -> &'static str {
        "repointing"
    }

    fn multiprocessors(&self) -> usize {
        self.inner.multiprocessors()
    }

    fn shared_memory(&self) -> usize {
        self.inner.shared_memory()
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        self.inner.allocate(bytes)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        // SAFETY: the caller's.
        unsafe { self.inner.free(address, bytes) }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.upload(to, from) }
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.download(from, to) }
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.launch(launch) }
    }

    unsafe fn capture(self: Arc<Self>, mut script: Script) -> Result<Box<dyn Capture>, CudaError> {
        if let Some(stale) = self.first.lock().unwrap().replace(script.launches[1].clone()) {
            script.launches[1] = stale;
        }
        // SAFETY: the caller's.
        unsafe { Arc::clone(&self.inner).capture(script) }
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.inner.synchronize()
    }
}

#[test]
fn g05_a_buffer_that_is_pointed_elsewhere_between_two_launches() {
    let net = value_over_a_side_lanes_operand(true);
    for inner in backends() {
        let host: Arc<dyn Backend> = Arc::new(Repointing { inner, first: Mutex::default() });
        let said = net.judged_on(&host, PDL).unwrap_err().to_string();
        assert!(said.contains("a stale address is baked in"), "{said}");
    }
}

/// The steps of an engine that is watched, as captured, are those of one that is not.
#[test]
fn g15_the_differential_leaves_the_captured_graph_as_it_is() {
    let all = Instruments { canary: Some(1 << 20), diff_every: Some(1), inject: None };
    let checkpoint = model();
    for backend in backends() {
        let prints = [Instruments::default(), all].map(|instruments| {
            let config = EngineConfig { instruments, ..config(SERVED, 3) };
            let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
            let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
            let loaded =
                DeviceWeights::load(&backend, &load(&registry, &checkpoint).unwrap(), &weights.stacks())
                    .unwrap();
            let executor =
                Executor { backend: Arc::clone(&backend), weights: loaded, options: Options::default() };
            let resident = DeviceResident::zeroed(&backend, &layout).unwrap();
            let print = |step: &flashlane::engine::Prepared| {
                let (graph, plan) = (&step.step.graph, &step.plan);
                let device = DeviceStep::upload(&backend, graph, &Memory::new(graph, plan)).unwrap();
                executor.read_back(graph, plan, (&device, &resident), PDL).unwrap().fingerprint
            };
            config.prepare(&weights, &layout).unwrap().iter().map(print).collect::<Vec<_>>()
        });
        assert!(prints[0].len() > 2, "{prints:?}");
        assert_eq!(prints[0], prints[1], "{}", backend.name());
    }
}
