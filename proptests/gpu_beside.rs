//! Operations beside each other: launched over and over on streams that share a GPU, each gives the bits that it gives alone.
//!
//! A kernel whose warps or blocks miss each other may be right whenever it has the GPU for itself: what runs beside it moves
//! when its parts start and how they are interleaved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use flashlane::cuda::{Backend, DeviceResident, DeviceStep, Executor, Gpu, Options, RunMode};
use flashlane::step::{Memory, Resident};

use crate::linear;
use crate::sanitize::cases;
use crate::support::cuda::{executor, gpu};
use crate::support::{Case, Dtype};

const STREAMS: usize = 6;
const LAUNCHES: usize = 100;
/// How often a stream takes every case.
const ROUNDS: usize = 3;

/// Products of the sizes that a model has.
fn products() -> Vec<Case> {
    let one = |rows: usize, depth, per_group| {
        let (groups, limit, dtype, f32_out) = (1, None, Dtype::Bf16, false);
        let shape = linear::Shape { rows, depth, per_group, groups, limit, dtype, f32_out };
        let (x, weight) = linear::inputs(&shape, rows as u64);
        let mut all = vec![linear::build(&shape, &x, &weight).case];
        all.extend(linear::formats(&weight, depth).into_iter().map(|stored| {
            let mut case = linear::build(&shape, &x, &weight).case;
            case.weights[0].1.stored = stored;
            case
        }));
        all
    };
    let few = [(1, 2048, 256), (16, 2048, 256), (64, 4096, 512), (64, 1024, 1024), (256, 2048, 256)];
    let sizes = few.into_iter().chain([(64, 512, 2048), (64, 512, 4096), (64, 512, 8192)]);
    sizes.flat_map(|(rows, depth, outs)| one(rows, depth, outs)).collect()
}

/// A case in the memory of a GPU.
struct Loaded<'a> {
    case: &'a Case,
    executor: Executor,
}

impl<'a> Loaded<'a> {
    fn new(backend: &Arc<dyn Backend>, case: &'a Case) -> Self {
        Self { case, executor: executor(backend, case, Options::default()).unwrap() }
    }

    /// Every byte after the launches: arena, outputs, pools and states.
    fn bytes(&self) -> Vec<Vec<u8>> {
        let Self { case, executor } = self;
        let (mut memory, mut resident): (Memory, Resident) = case.memory(0x5a);
        let step = DeviceStep::upload(&executor.backend, &case.graph, &memory).unwrap();
        let device = DeviceResident::upload(&executor.backend, &resident).unwrap();
        let how = (RunMode::default(), &BTreeMap::new());
        let ready = executor.ready_unproved(&case.graph, &case.plan, (&step, &device), how).unwrap();
        (0..LAUNCHES).for_each(|_| executor.start(&ready).unwrap());
        executor.backend.synchronize().unwrap();
        step.read_arena(&mut memory).unwrap();
        step.read_outputs(&mut memory).unwrap();
        device.download(&mut resident).unwrap();
        let stores = resident.pools.iter().chain(&resident.states).map(|bytes| bytes.to_vec());
        [memory.arena.to_vec(), memory.outputs().to_vec()].into_iter().chain(stores).collect()
    }
}

#[test]
fn a_kernel_beside_others_gives_the_bits_that_it_gives_alone() {
    let Some(gpu) = gpu() else { return };
    let cases: Vec<Case> = cases().into_iter().flat_map(|(_, cases)| cases).chain(products()).collect();
    let alone: Vec<_> = cases.iter().map(|case| Loaded::new(&gpu, case).bytes()).collect();
    thread::scope(|scope| {
        for stream in 0..STREAMS {
            let (cases, alone) = (&cases, &alone);
            scope.spawn(move || {
                let gpu: Arc<dyn Backend> = Arc::new(Gpu::open(0).unwrap());
                for at in 0..ROUNDS * cases.len() {
                    let i = (at + stream * cases.len() / STREAMS) % cases.len();
                    let found = Loaded::new(&gpu, &cases[i]).bytes();
                    let op = &cases[i].graph.nodes[0].op;
                    assert!(found == alone[i], "case {i} of {op:?}: other bytes than alone");
                }
            });
        }
    });
}
