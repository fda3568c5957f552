//! Every node of the model's step touches what it says and nothing else: with all other memory poisoned its results are the
//! same, and all other memory is as before.

use flashlane::format::index_row::IndexFormat;
use flashlane::model::StepShape;
use flashlane::ops::{BufferId, Contents, Dtype, Mode, Touched, Value};
use flashlane::step::{Class, Graph, Memory, Node, Operands, Plan, Resident};

use crate::inputs::Segment;
use crate::world::{Executor, World, world};

/// NaN in every float format and -1 as an index; and a large number of every kind.
const POISONS: [u8; 2] = [0xff, 0x7e];

/// The bytes of each buffer, apart from weights.
#[derive(Clone, PartialEq)]
struct Everything(Vec<Vec<u8>>);

impl Everything {
    fn of(graph: &Graph, plan: &Plan, memory: &mut Memory, resident: &Resident) -> Self {
        Self(graph.buffer_ids().map(|id| load(graph, plan, id, memory, resident)).collect())
    }

    /// All bytes that a node does not read poisoned.
    fn poisoned(&self, touched: &[Touched], poison: u8) -> Self {
        let mut all: Vec<Vec<u8>> = self.0.iter().map(|b| vec![poison; b.len()]).collect();
        for one in touched.iter().filter(|t| t.mode == Mode::Read) {
            let at = one.buffer.0 as usize;
            for range in one.ranges.iter().filter(|_| !self.0[at].is_empty()) {
                all[at][range.clone()].copy_from_slice(&self.0[at][range.clone()]);
            }
        }
        Self(all)
    }

    fn run(&self, world: &World, node: &Node, executor: &Executor) -> Self {
        let graph = &world.step.graph;
        // Buffers of a step in bytes of their own, so that poison of one is not another's operand.
        let plan = Plan::unshared(graph);
        let (mut memory, mut resident) = (Memory::new(graph, &plan), world.resident.clone());
        for (id, bytes) in graph.buffer_ids().zip(&self.0) {
            store(graph, &plan, id, bytes, &mut memory, &mut resident);
        }
        let operands = Operands::new(graph, &plan, node, &mut memory, &mut resident).unwrap();
        executor.run(graph, node, operands).unwrap();
        Self::of(graph, &plan, &mut memory, &resident)
    }
}

fn host(graph: &Graph, id: BufferId) -> Value {
    Value { buffer: id, dtype: Dtype::U8, len: graph.buffer(id).bytes }
}

fn load(graph: &Graph, plan: &Plan, id: BufferId, memory: &Memory, resident: &Resident) -> Vec<u8> {
    let bytes = graph.buffer(id).bytes;
    match graph.buffer(id).class {
        Class::Weight(_) => Vec::new(),
        Class::Pool(pool) => resident.pools[pool.0 as usize].to_vec(),
        Class::State(state) => resident.states[state.0 as usize].to_vec(),
        Class::Input | Class::Output => memory.host::<u8>(&host(graph, id)).to_vec(),
        Class::Transient => memory.arena[plan.offsets[id.0 as usize].unwrap()..][..bytes].to_vec(),
    }
}

fn store(
    graph: &Graph,
    plan: &Plan,
    id: BufferId,
    bytes: &[u8],
    memory: &mut Memory,
    resident: &mut Resident,
) {
    match graph.buffer(id).class {
        Class::Weight(_) => {}
        Class::Pool(pool) => resident.pools[pool.0 as usize].copy_from_slice(bytes),
        Class::State(state) => resident.states[state.0 as usize].copy_from_slice(bytes),
        Class::Input | Class::Output => memory.host_mut::<u8>(&host(graph, id)).copy_from_slice(bytes),
        Class::Transient => {
            memory.arena[plan.offsets[id.0 as usize].unwrap()..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl Contents for Everything {
    fn bytes(&self, value: &Value) -> Option<&[u8]> {
        self.0.get(value.buffer.0 as usize).map(Vec::as_slice)
    }
}

/// Runs a step node by node, each under both poisons.
fn honest(index: IndexFormat, shape: StepShape, requests: &[Segment]) {
    let mut world = world(index, shape, requests, 3);
    let graph = &world.step.graph;
    let plan = Plan::unshared(graph);
    let mut start = Memory::new(graph, &plan);
    for id in graph.buffer_ids().filter(|id| graph.buffer(*id).class == Class::Input) {
        let value = host(graph, id);
        start.host_mut::<u8>(&value).copy_from_slice(world.memory.host::<u8>(&value));
    }
    for executor in std::mem::take(&mut world.executors) {
        let mut now = Everything::of(graph, &plan, &mut start, &world.resident);
        for node in &graph.nodes {
            let touched = node.op.touched(&now).unwrap();
            let runs = POISONS.map(|poison| {
                let before = now.poisoned(&touched, poison);
                let after = before.run(&world, node, &executor);
                (before, after)
            });
            let name = format!("{} {index:?} {} of {}", executor.name(), node.op.name(), node.scope);
            check(graph, &touched, &runs, &mut now, &name);
        }
    }
}

fn check(
    graph: &Graph,
    touched: &[Touched],
    runs: &[(Everything, Everything); 2],
    now: &mut Everything,
    name: &str,
) {
    for id in graph.buffer_ids() {
        let at = id.0 as usize;
        let writes = touched.iter().filter(|t| t.mode == Mode::Write && t.buffer == id);
        if !touched.iter().any(|t| t.mode == Mode::Write && t.buffer == id) {
            let kept = runs.iter().all(|(before, after)| before.0[at] == after.0[at]);
            assert!(kept, "{name}: {} is written, and not said to be", graph.buffer(id).name);
            continue;
        }
        let mut written = vec![false; now.0[at].len()];
        for range in writes.flat_map(|t| &t.ranges) {
            written[range.clone()].fill(true);
        }
        let [first, second] = runs;
        for (byte, written) in written.into_iter().enumerate() {
            let buffer = &graph.buffer(id).name;
            if written {
                let same = first.1.0[at][byte] == second.1.0[at][byte];
                assert!(
                    same,
                    "{name}: byte {byte} of {buffer} is not written, or depends on bytes not touched"
                );
                now.0[at][byte] = first.1.0[at][byte];
            } else {
                let kept = runs.iter().all(|(before, after)| before.0[at][byte] == after.0[at][byte]);
                assert!(kept, "{name}: byte {byte} of {buffer} is written, and not said to be");
            }
        }
    }
}

const DECODE: [Segment; 4] = [(511, 1), (130, 1), (0, 0), (7, 1)];

#[test]
fn decode_f32() {
    honest(IndexFormat::F32, StepShape::decode(4, 1024), &DECODE);
}

#[test]
fn decode_bf16() {
    honest(IndexFormat::Bf16, StepShape::decode(4, 1024), &[(256, 1), (127, 1), (383, 1), (0, 1)]);
}

#[test]
fn decode_fp8_and_fp4() {
    honest(IndexFormat::Fp8, StepShape::decode(4, 1024), &DECODE);
    honest(IndexFormat::Fp4, StepShape::decode(4, 1024), &[(259, 1), (0, 0), (3, 1), (900, 1)]);
}

#[test]
fn prefill_blocks() {
    honest(IndexFormat::Bf16, StepShape::prefill(1024), &[(256, 141)]);
    honest(IndexFormat::Fp4, StepShape::prefill(1024), &[(0, 256)]);
}
