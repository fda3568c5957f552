//! A tiny model with memory full of plausible rows, so that a single step can run from anywhere in a sequence.

use flashlane::checkpoint::synthetic::{checkpoint, tiny_config};
use flashlane::cpu;
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{CacheLayout, CacheSize, ModelStep, ModelWeights, StepShape, build_step, load};
use flashlane::ops::{Dtype, Embed};
use flashlane::reference;
use flashlane::step::{Bytes, Graph, Memory, Node, Numerics, Operands, Plan, Random, Resident};

use crate::inputs::{Segment, filled};

/// What computes nodes.
pub(crate) enum Executor {
    Cpu(cpu::Weights),
    Reference(reference::Weights),
}

impl Executor {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Reference(_) => "reference",
        }
    }

    pub(crate) fn run(&self, graph: &Graph, node: &Node, operands: Operands<'_>) -> Result<(), Failure> {
        match self {
            Self::Cpu(weights) => Ok(cpu::run(graph, node, operands, weights)?),
            Self::Reference(weights) => Ok(reference::run(graph, node, operands, weights)?),
        }
    }
}

pub(crate) type Failure = Box<dyn std::error::Error>;

/// A step of the tiny model with its inputs and everything that it may read.
pub(crate) struct World {
    pub(crate) step: ModelStep,
    pub(crate) plan: Plan,
    pub(crate) memory: Memory,
    pub(crate) resident: Resident,
    pub(crate) executors: Vec<Executor>,
}

pub(crate) fn world(index: IndexFormat, shape: StepShape, requests: &[Segment], seed: u64) -> World {
    let config = tiny_config();
    let (weights, registry) = ModelWeights::new(&config, shape.max_positions);
    let (activation, kv) = match index {
        IndexFormat::F32 => (Dtype::F32, KvFormat::F32),
        IndexFormat::Bf16 => (Dtype::Bf16, KvFormat::Bf16),
        IndexFormat::Fp8 | IndexFormat::Fp4 => (Dtype::Bf16, KvFormat::Fp8),
    };
    let numerics = Numerics { activation, trained: kv == KvFormat::Fp8, kv, index };
    let size = CacheSize { window_pages: 14, blocks: 10, slots: 5 };
    let layout = CacheLayout::new(&weights, numerics, size);
    let step = build_step(&weights, &layout, numerics, shape).unwrap();
    let loaded = load(&registry, &checkpoint(&config, 5).unwrap()).unwrap();
    let executors = vec![
        Executor::Reference(reference::Weights::from_loaded(&loaded)),
        Executor::Cpu(loaded.into_iter().collect()),
    ];
    let mut random = Random::new(seed);
    let mut noise = |bytes: usize| {
        let mut all = Bytes::zeroed(bytes);
        all.fill_with(|| 0x34 + random.below(12) as u8 + 0x80 * random.below(2) as u8);
        all
    };
    // Small numbers in every format, of either sign; scale bytes with the sign bit are large and still finite.
    let mut resident = Resident {
        pools: layout.pools().map(|p| noise(p.pages * p.page_bytes)).collect(),
        states: layout.states().map(|s| noise(s.slots * s.len * 4)).collect(),
    };
    let plan = Plan::shared(&step.graph);
    let mut memory = filled(&step, requests, &plan);
    let mut id = || random.below(config.vocab_size) as i32;
    let carry = &mut resident.states[layout.carry.id.0 as usize];
    bytemuck::cast_slice_mut(carry).fill_with(&mut id);
    memory.host_mut::<i32>(&step.io.token).fill_with(&mut id);
    if shape.per_request == 1 {
        memory.host_mut::<i32>(&step.io.token).iter_mut().step_by(2).for_each(|t| *t = Embed::CARRIED);
    }
    World { step, plan, memory, resident, executors }
}
