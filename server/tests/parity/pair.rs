//! The CPU and the other executor, over the same sequences.

use flashlane::cache::{Caches, Owner, Sequence};
use flashlane::engine::SamplingParams;
use flashlane::engine::inputs::{Segment, Tokens, fill};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{CacheLayout, CacheSize, ModelStep, StepShape, build_step};
use flashlane::ops::{BLOCK_TOKENS, Dtype, Op};
use flashlane::step::{Bytes, Graph, Memory, Numerics, Plan, Resident};
use flashlane::{cpu, reference};

use crate::judge::{Judge, Shown};
use crate::models::{Model, POSITIONS};
use crate::stages::Found;

/// The roundings that the built-in model was trained with.
const NUMERICS: Numerics =
    Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index: IndexFormat::Fp4 };

type RunStep = dyn Fn(&Graph, &Plan, &mut Memory, &mut Resident) -> Result<(), String>;

/// What is held against the CPU.
pub(crate) struct Other {
    pub(crate) name: &'static str,
    /// It is slow: run little.
    pub(crate) reduced: bool,
    run: Box<RunStep>,
}

impl Other {
    /// The CPU itself with an attention whose scale is a tenth too large: what must be found.
    pub(crate) fn planted(model: &Model) -> Self {
        let weights: cpu::Weights = model.loaded.iter().cloned().collect();
        let run = move |graph: &Graph, plan: &Plan, memory: &mut Memory, resident: &mut Resident| {
            let mut wrong = graph.clone();
            for node in &mut wrong.nodes {
                if let Op::Attention(op) = &mut node.op {
                    op.scale *= 1.1;
                }
            }
            cpu::serial::run_step(&wrong, plan, memory, resident, &weights).map_err(|e| e.to_string())
        };
        Self { name: "planted", reduced: true, run: Box::new(run) }
    }

    /// The GPU; where there is none, and none is required, the oracle.
    pub(crate) fn of(model: &Model) -> Self {
        #[cfg(feature = "cuda")]
        if let Some(run) = on_gpu(model) {
            return Self { name: "gpu", reduced: false, run };
        }
        let required = std::env::var("FLASHLANE_GPU").is_ok_and(|v| v == "required");
        assert!(!required, "FLASHLANE_GPU=required, and there is no GPU, or this build has no kernels");
        let weights = reference::Weights::from_loaded(&model.loaded);
        let run = move |graph: &Graph, plan: &Plan, memory: &mut Memory, resident: &mut Resident| {
            reference::run_step(graph, plan, memory, resident, &weights).map_err(|e| e.to_string())
        };
        Self { name: "oracle (no GPU)", reduced: true, run: Box::new(run) }
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(model: &Model) -> Option<Box<RunStep>> {
    use std::sync::Arc;

    use flashlane::cuda::{Backend, DeviceWeights, Executor, Gpu, Options, device_count, kernels_built};
    if !kernels_built() || device_count() == 0 {
        return None;
    }
    let backend: Arc<dyn Backend> = Arc::new(Gpu::open(0).unwrap());
    let weights = DeviceWeights::load(&backend, &model.loaded, &model.weights.stacks()).unwrap();
    let executor = Executor { backend, weights, options: Options::default() };
    Some(Box::new(move |graph, plan, memory, resident| {
        executor.run_on_host_memory(graph, plan, memory, resident).map_err(|e| e.to_string())
    }))
}

/// Which caches the other executor's steps begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Those that its own steps have written.
    Own,
    /// The CPU's, so that differences do not add up over steps.
    Leaders,
}

/// A step; on the CPU its values all keep their own memory, so that they can be read after it.
pub(crate) struct Step {
    pub(crate) model: ModelStep,
    pub(crate) plan: Plan,
    /// The other executor's: the same where its values are to be read, else one that is as small as served.
    other: Plan,
}

/// The memory of one step after it ran, on either side.
pub(crate) struct Ran {
    pub(crate) cpu: Memory,
    pub(crate) other: Memory,
}

struct Playing {
    sequence: Sequence,
    len: usize,
    next: u32,
}

pub(crate) struct Pair<'a> {
    other: &'a Other,
    caching: Caching,
    decode: Step,
    prefill: Step,
    weights: cpu::Weights,
    caches: Caches,
    resident: [Resident; 2],
    playing: Vec<Playing>,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(model: &Model, other: &'a Other, rows: usize, caching: Caching, stages: bool) -> Self {
        let size = CacheSize {
            window_pages: 1 + rows * (3 + BLOCK_TOKENS / 64),
            blocks: 1 + rows * (POSITIONS / BLOCK_TOKENS),
            slots: 1 + rows,
        };
        let layout = CacheLayout::new(&model.weights, NUMERICS, size);
        let step = |shape| {
            let model = build_step(&model.weights, &layout, NUMERICS, shape).unwrap();
            let plan = Plan::unshared(&model.graph);
            let other = if stages { plan.clone() } else { Plan::shared(&model.graph) };
            Step { model, plan, other }
        };
        let resident = || Resident {
            pools: layout.pools().map(|p| Bytes::zeroed(p.pages * p.page_bytes)).collect(),
            states: layout.states().map(|s| Bytes::zeroed(s.slots * s.len * 4)).collect(),
        };
        Self {
            other,
            caching,
            decode: step(StepShape::decode(rows, POSITIONS)),
            prefill: step(StepShape::prefill(POSITIONS)),
            weights: model.loaded.iter().cloned().collect(),
            caches: Caches::new(size),
            resident: [resident(), resident()],
            playing: Vec::new(),
        }
    }

    /// Plays sessions side by side, `tokens` greedy tokens each, and has every step judged.
    pub(crate) fn play(&mut self, prompts: &[Vec<u32>], tokens: usize, judge: &mut Judge<'_>) {
        let first = judge.begin(prompts.len());
        for (i, prompt) in prompts.iter().enumerate() {
            self.read(prompt, |step, ran, shown| judge.step(step, ran, &[shown(first + i)]));
        }
        let mut going = vec![true; prompts.len()];
        for _ in 1..tokens {
            // Behind its end token nothing is an answer any more.
            let ended = |row: usize| self.playing[row].next == judge.end_token();
            going.iter_mut().enumerate().for_each(|(row, going)| *going &= !ended(row));
            let ran = self.decode();
            let shown = (0..prompts.len()).filter(|row| going[*row]).map(|row| Shown {
                session: first + row,
                rows: row..row + 1,
                sample: Some(row),
                fresh: self.caching == Caching::Leaders,
            });
            judge.step(&self.decode, &ran, &shown.collect::<Vec<_>>());
        }
    }

    /// Decodes a few tokens and compares every value of those steps.
    pub(crate) fn compare_stages(&mut self, prompts: &[Vec<u32>], steps: usize) -> Found {
        for prompt in prompts {
            self.read(prompt, |_, _, _| ());
        }
        let mut found = Found::default();
        for _ in 0..steps {
            let ran = self.decode();
            found.compare(&self.decode, &ran, prompts.len());
        }
        found
    }

    /// Reads a prompt, block by block, with `judge` after each; the first token is the CPU's.
    fn read(&mut self, prompt: &[u32], mut judge: impl FnMut(&Step, &Ran, &dyn Fn(usize) -> Shown)) {
        let owner = Owner(u64::try_from(self.playing.len()).unwrap() + 1);
        let sequence = Sequence::admit(&mut self.caches, owner, POSITIONS).unwrap();
        self.playing.push(Playing { sequence, len: 0, next: 0 });
        let (row, blocks) = (self.playing.len() - 1, prompt.len().div_ceil(BLOCK_TOKENS));
        for (i, block) in prompt.chunks(BLOCK_TOKENS).enumerate() {
            let last = i + 1 == blocks;
            let ran = self.run(true, row..row + 1, &[block], last);
            let fresh = self.caching == Caching::Leaders;
            let shown = |session| Shown { session, rows: 0..block.len(), sample: last.then_some(0), fresh };
            judge(&self.prefill, &ran, &shown);
            self.playing[row].next = next(&self.prefill, &ran.cpu, 0);
        }
    }

    /// One token of every session.
    fn decode(&mut self) -> Ran {
        let tokens: Vec<[u32; 1]> = self.playing.iter().map(|p| [p.next]).collect();
        let tokens: Vec<&[u32]> = tokens.iter().map(<[u32; 1]>::as_slice).collect();
        let ran = self.run(false, 0..tokens.len(), &tokens, true);
        for (row, playing) in self.playing.iter_mut().enumerate() {
            playing.next = next(&self.decode, &ran.cpu, row);
        }
        ran
    }

    fn run(&mut self, prefill: bool, rows: std::ops::Range<usize>, tokens: &[&[u32]], sample: bool) -> Ran {
        for (playing, tokens) in self.playing[rows.clone()].iter_mut().zip(tokens) {
            let to = playing.len + tokens.len();
            playing.sequence.extend_window(&mut self.caches, playing.len, to).unwrap();
        }
        let step = if prefill { &self.prefill } else { &self.decode };
        let mut cpu = Memory::new(&step.model.graph, &step.plan);
        let greedy = SamplingParams::default();
        let segments = self.playing[rows.clone()].iter().zip(tokens).map(|(playing, tokens)| Segment {
            sequence: &playing.sequence,
            start: playing.len,
            tokens: Tokens::Given(tokens),
            sample: sample.then_some(&greedy),
        });
        fill(&step.model, &mut cpu.io, &segments.collect::<Vec<_>>());
        let mut other = Memory::new(&step.model.graph, &step.other);
        other.io.clone_from(&cpu.io);
        let [leading, following] = &mut self.resident;
        if self.caching == Caching::Leaders {
            following.clone_from(leading);
        }
        (self.other.run)(&step.model.graph, &step.other, &mut other, following).unwrap();
        cpu::serial::run_step(&step.model.graph, &step.plan, &mut cpu, leading, &self.weights).unwrap();
        for (playing, tokens) in self.playing[rows].iter_mut().zip(tokens) {
            playing.len += tokens.len();
            playing.sequence.slide(&mut self.caches, playing.len, 0).unwrap();
        }
        self.caches.settle(0);
        Ran { cpu, other }
    }
}

fn next(step: &Step, memory: &Memory, row: usize) -> u32 {
    u32::try_from(memory.host::<i32>(&step.model.io.next)[row]).unwrap_or(0)
}
