//! A step is built, and on a GPU captured, once, and then runs on inputs of every length and number: public cases in which what
//! the host knew at capture stayed in the graph. On the CPU, in the race simulator, on the emulator, and on a GPU in all modes.

use flashlane::checkpoint::synthetic::{checkpoint, tiny_config};
use flashlane::cpu::{self, any_order, serial};
use flashlane::engine::{Engine, EngineConfig, Generate};
use flashlane::format::index_row::IndexFormat;
use flashlane::model::{
    CacheLayout, CacheSize, ModelStep, ModelWeights, Registry, StepShape, build_step, load,
};
use flashlane::ops::{BufferId, Dtype, Op, Tokens, TopK, Value};
use flashlane::step::{
    Buffer, Bytes, Class, Graph, LaneId, LaneInfo, Memory, Mutant, Node, Plan, Random, Resident,
};

use crate::engine::{SERVED, collect, config, model, request};
use crate::inputs::{Segment, filled};
use crate::support::Draw;

/// A step, and how the weights that it reads are had.
struct Step<'a> {
    graph: &'a Graph,
    plan: Plan,
    registry: Option<&'a Registry>,
    /// Stacks of expert matrices, as a device wants to know them.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only devices take it"))]
    weights: Option<&'a ModelWeights>,
}

impl Step<'_> {
    fn cpu_weights(&self) -> cpu::Weights {
        let load = |registry| load(registry, &checkpoint(&tiny_config(), 5).unwrap()).unwrap();
        self.registry.map_or_else(Vec::new, load).into_iter().collect()
    }
}

/// Something that runs a step, made ready once, on one input after another.
enum Runner {
    Serial,
    Simulator(u64),
    #[cfg(feature = "cuda")]
    Device(std::sync::Arc<dyn flashlane::cuda::Backend>, flashlane::cuda::RunMode),
}

fn runners() -> Vec<Runner> {
    #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "devices come with the feature"))]
    let mut all = vec![Runner::Serial, Runner::Simulator(3)];
    #[cfg(feature = "cuda")]
    {
        use crate::gpu_engine::modes;
        #[cfg(feature = "emulator")]
        all.push(Runner::Device(
            std::sync::Arc::new(flashlane::cuda::Emulator::new(1)),
            flashlane::cuda::RunMode::default(),
        ));
        if let Some(gpu) = crate::support::cuda::gpu() {
            all.extend(modes().map(|mode| Runner::Device(std::sync::Arc::clone(&gpu), mode)));
        }
    }
    all
}

impl Runner {
    fn name(&self) -> String {
        match self {
            Self::Serial => "serial".to_owned(),
            Self::Simulator(seed) => format!("any order, seed {seed}"),
            #[cfg(feature = "cuda")]
            Self::Device(backend, mode) => format!("{} {mode:?}", backend.name()),
        }
    }

    /// Runs the step on each of the inputs in turn, and leaves its outputs there.
    fn replay(&self, step: &Step<'_>, inputs: &mut [Memory], resident: &mut Resident) {
        match self {
            Self::Serial => {
                let weights = step.cpu_weights();
                for memory in inputs {
                    serial::run_step(step.graph, &step.plan, memory, resident, &weights).unwrap();
                }
            }
            Self::Simulator(seed) => {
                let weights = step.cpu_weights();
                for (at, memory) in (0..).zip(inputs) {
                    let order = (any_order::Order::Any, seed + at);
                    any_order::run_step(step.graph, &step.plan, memory, resident, &weights, order).unwrap();
                }
            }
            #[cfg(feature = "cuda")]
            Self::Device(backend, mode) => device(backend, *mode, step, inputs, resident),
        }
    }
}

#[cfg(feature = "cuda")]
fn device(
    backend: &std::sync::Arc<dyn flashlane::cuda::Backend>,
    mode: flashlane::cuda::RunMode,
    step: &Step<'_>,
    inputs: &mut [Memory],
    resident: &mut Resident,
) {
    use flashlane::cuda::{DeviceResident, DeviceStep, DeviceWeights, Executor, Options};
    let loaded = |registry| load(registry, &checkpoint(&tiny_config(), 5).unwrap()).unwrap();
    let loaded = step.registry.map_or_else(Vec::new, loaded);
    let stacks = step.weights.map(ModelWeights::stacks).unwrap_or_default();
    let weights = DeviceWeights::load(backend, &loaded, &stacks).unwrap();
    let executor = Executor { backend: std::sync::Arc::clone(backend), weights, options: Options::default() };
    let (graph, plan) = (step.graph, &step.plan);
    let own = DeviceStep::upload(backend, graph, &inputs[0]).unwrap();
    let pools = DeviceResident::upload(backend, resident).unwrap();
    let ready = executor.ready(graph, plan, (&own, &pools), mode).unwrap();
    for memory in inputs {
        own.write_inputs(memory).unwrap();
        executor.start(&ready).unwrap();
        backend.synchronize().unwrap();
        own.read_outputs(memory).unwrap();
    }
    pools.download(resident).unwrap();
}

/// A step of one `topk` on inputs of the host's.
struct Choice {
    graph: Graph,
    position: Value,
    logits: Value,
    selected: Value,
    width: usize,
}

const K: usize = 512;

impl Choice {
    fn new(rows: usize, width: usize) -> Self {
        let mut graph = Graph::default();
        graph.lanes.push(LaneInfo { name: "main".into(), parent: None });
        let mut buffer = |name: &str, class, dtype: Dtype, len: usize| {
            let id = BufferId(u32::try_from(graph.buffers.len()).unwrap());
            let bytes = len * dtype.size();
            graph.buffers.push(Buffer { name: name.into(), class, dtype, shape: vec![len], bytes });
            Value { buffer: id, dtype, len }
        };
        let position = buffer("position", Class::Input, Dtype::I32, rows);
        let logits = buffer("logits", Class::Input, Dtype::F32, rows * width);
        let selected = buffer("selected", Class::Output, Dtype::I32, rows * K);
        let tokens = Tokens { requests: rows, per_request: 1, position };
        let op = Op::TopK(TopK { tokens, logits, width, selected, k: K });
        graph.nodes.push(Node { op, lane: LaneId(0), scope: "case".into(), waits: true });
        Self { graph, position, logits, selected, width }
    }

    fn step(&self) -> Step<'_> {
        Step { graph: &self.graph, plan: Plan::shared(&self.graph), registry: None, weights: None }
    }

    /// Each row sees so many of its columns.
    fn input(&self, visible: &[usize], logits: &[f32]) -> Memory {
        let mut memory = Memory::new(&self.graph, &Plan::shared(&self.graph));
        let last = visible.iter().map(|&rows| i32::try_from(4 * rows + 3).unwrap() - 1);
        memory.host_mut::<i32>(&self.position).iter_mut().zip(last).for_each(|(to, p)| *to = p);
        memory.host_mut::<f32>(&self.logits).copy_from_slice(logits);
        memory
    }

    fn chosen(&self, memory: &Memory) -> Vec<Vec<i32>> {
        memory.host::<i32>(&self.selected).chunks(K).map(<[i32]>::to_vec).collect()
    }
}

/// Captured at a length at which every row is taken and no score is read.
#[test]
fn t14_a_step_captured_at_length_1_takes_the_best_of_600_rows() {
    let choice = Choice::new(1, 1024);
    let scores: Vec<f32> = (0..1024).map(|i| if i < 88 { -1.0 } else { 1.0 + i as f32 }).collect();
    let best: Vec<i32> = (88..600).collect();
    for runner in runners() {
        let mut inputs = [choice.input(&[0], &[0.0; 1024]), choice.input(&[600], &scores)];
        runner.replay(&choice.step(), &mut inputs, &mut Resident::default());
        assert_eq!(choice.chosen(&inputs[0])[0], [-1; K], "{}", runner.name());
        assert_eq!(choice.chosen(&inputs[1])[0], best, "{}", runner.name());
    }
    // The host that took the shortcut while capturing.
    let baked = Choice { graph: Mutant::BakedLength.bake(&choice.graph, 1).unwrap(), ..Choice::new(1, 1024) };
    let mut inputs = [baked.input(&[600], &scores)];
    Runner::Serial.replay(&baked.step(), &mut inputs, &mut Resident::default());
    assert_ne!(baked.chosen(&inputs[0])[0], best);
}

/// What the first replay left in the columns beyond is larger than any score of the second.
#[test]
fn a02_rows_of_width_4096_in_a_step_captured_at_8192_are_as_alone() {
    let (wide, narrow) = (Choice::new(3, 8192), Choice::new(1, 4096));
    let mut draw = Draw::new(2);
    let first: Vec<f32> = (0..3 * 8192).map(|_| 100.0 + draw.normal(1.0)).collect();
    let mut second = first.clone();
    for row in second.chunks_mut(wide.width) {
        row[..narrow.width].iter_mut().for_each(|score| *score = draw.normal(1.0));
    }
    for runner in runners() {
        let mut inputs = [wide.input(&[8192; 3], &first), wide.input(&[4096; 3], &second)];
        runner.replay(&wide.step(), &mut inputs, &mut Resident::default());
        for (at, chosen) in wide.chosen(&inputs[1]).iter().enumerate() {
            let scores = &second[at * wide.width..][..narrow.width];
            let mut alone = [narrow.input(&[4096], scores)];
            runner.replay(&narrow.step(), &mut alone, &mut Resident::default());
            assert_eq!(chosen, &narrow.chosen(&alone[0])[0], "{}, row {at}", runner.name());
        }
    }
}

/// The same of the whole model, whose page tables are wider than its sequences.
#[test]
fn a02_tokens_do_not_depend_on_the_width_of_the_page_tables() {
    let sizes = [(90, 9), (257, 9), (420, 9)];
    let tokens = |start: &dyn Fn(EngineConfig) -> Engine, rows, max_model_len| {
        let engine = start(EngineConfig { max_model_len, ..config(SERVED, rows) });
        let submit =
            |(seed, (prompt, max)): (u64, (usize, usize))| engine.submit(request(seed, prompt, max)).unwrap();
        let handles: Vec<_> = (0u64..).zip(sizes).map(submit).collect();
        handles.into_iter().map(|handle| collect(handle).0).collect::<Vec<_>>()
    };
    let hold = |start: &dyn Fn(EngineConfig) -> Engine| {
        assert_eq!(tokens(start, 3, 4096), tokens(start, 1, 512));
    };
    hold(&|config| Engine::on_cpu(&model(), config).unwrap());
    #[cfg(feature = "cuda")]
    if let Some(gpu) = crate::support::cuda::gpu() {
        for mode in crate::gpu_engine::modes() {
            hold(&|config| crate::gpu_engine::engine(&gpu, config, mode));
        }
    }
}

const POSITIONS: usize = 1024;

/// The tiny model's decode step of a bucket.
struct Decode {
    weights: ModelWeights,
    registry: Registry,
    layout: CacheLayout,
    step: ModelStep,
}

impl Decode {
    fn new(rows: usize) -> Self {
        let (weights, registry) = ModelWeights::new(&tiny_config(), POSITIONS);
        let numerics = crate::model_step::numerics(IndexFormat::Bf16);
        let layout =
            CacheLayout::new(&weights, numerics, CacheSize { window_pages: 40, blocks: 40, slots: 9 });
        let step = build_step(&weights, &layout, numerics, StepShape::decode(rows, POSITIONS)).unwrap();
        Self { weights, registry, layout, step }
    }

    fn step(&self) -> Step<'_> {
        Step {
            graph: &self.step.graph,
            plan: Plan::shared(&self.step.graph),
            registry: Some(&self.registry),
            weights: Some(&self.weights),
        }
    }

    fn input(&self, requests: &[Segment]) -> Memory {
        let mut memory = filled(&self.step, requests, &self.step().plan);
        let ids = memory.host_mut::<i32>(&self.step.io.token).iter_mut().zip(7..);
        ids.for_each(|(to, id)| *to = id);
        memory
    }

    /// Plausible rows: small numbers in every format, of either sign.
    fn resident(&self) -> Resident {
        let mut random = Random::new(4);
        let mut noise = |bytes: usize| {
            let mut all = Bytes::zeroed(bytes);
            all.fill_with(|| 0x34 + random.below(12) as u8 + 0x80 * random.below(2) as u8);
            all
        };
        Resident {
            pools: self.layout.pools().map(|p| noise(p.pages * p.page_bytes)).collect(),
            states: self.layout.states().map(|s| noise(s.slots * s.len * 4)).collect(),
        }
    }

    /// The inputs of one row of another bucket's, for the bucket of one.
    fn row_of(&self, other: &Self, memory: &Memory, row: usize) -> Memory {
        let mut own = Memory::new(&self.step.graph, &self.step().plan);
        let (to, from) = (&self.step.io, &other.step.io);
        for (to, from) in [
            (&to.token, &from.token),
            (&to.position, &from.position),
            (&to.window_slot, &from.window_slot),
            (&to.c4_slot, &from.c4_slot),
            (&to.c128_slot, &from.c128_slot),
            (&to.state_slot, &from.state_slot),
            (&to.window_table, &from.window_table),
            (&to.block_table, &from.block_table),
            (&to.sample_position, &from.sample_position),
        ] {
            let (bytes, all) = (to.bytes(), memory.host_bytes(from.buffer));
            own.host_bytes_mut(to.buffer).copy_from_slice(&all[row * bytes..][..bytes]);
        }
        own.host_mut::<i32>(&to.sample_rows)[0] = 0;
        own
    }
}

/// After a full bucket the same bucket with padding: its live rows are as alone, and padding writes the null page at most.
#[test]
fn a09_three_rows_in_a_bucket_that_was_full() {
    let (bucket, alone) = (Decode::new(8), Decode::new(1));
    let full = [100, 130, 259, 64, 3, 7, 127, 300].map(|at| (at, 1));
    let mut three = [(0, 0); 8];
    three[..3].copy_from_slice(&[(511, 1), (130, 1), (259, 1)]);
    for runner in runners() {
        let name = runner.name();
        let (mut before, mut together) = (bucket.resident(), bucket.resident());
        runner.replay(&bucket.step(), &mut [bucket.input(&full)], &mut before);
        let mut inputs = [bucket.input(&full), bucket.input(&three)];
        runner.replay(&bucket.step(), &mut inputs, &mut together);
        let mut apart = before;
        for row in 0..3 {
            let mut one = [alone.row_of(&bucket, &inputs[1], row)];
            runner.replay(&alone.step(), &mut one, &mut apart);
            let (io, own) = (&bucket.step.io, &alone.step.io);
            let vocab = own.logits.len;
            let logits = &inputs[1].host::<f32>(&io.logits)[row * vocab..][..vocab];
            assert!(logits.iter().all(|l| l.is_finite()), "{name}, row {row}");
            assert_eq!(logits, one[0].host::<f32>(&own.logits), "{name}, row {row}");
            assert_eq!(
                inputs[1].host::<i32>(&io.next)[row],
                one[0].host::<i32>(&own.next)[0],
                "{name}, row {row}"
            );
        }
        for (at, pool) in bucket.layout.pools().enumerate() {
            let (a, b) = (&together.pools[at][pool.page_bytes..], &apart.pools[at][pool.page_bytes..]);
            assert!(a == b, "{name}: padding wrote to {}", pool.name);
        }
        let equal = together.states.iter().zip(&apart.states).all(|(a, b)| a[..] == b[..]);
        assert!(equal, "{name}: padding wrote to a state");
    }
}
