//! Sealing a decode step: filling its inputs from the requests and checking them, which the host does before each launch.

use criterion::{BenchmarkId, Criterion};
use flashlane::cache::{Caches, Owner, Sequence};
use flashlane::checkpoint::synthetic;
use flashlane::engine::SamplingParams;
use flashlane::engine::inputs::{Held, Segment, Tokens, fill};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{CacheLayout, CacheSize, ModelStep, ModelWeights, StepShape, build_step};
use flashlane::ops::{BLOCK_TOKENS, Dtype};
use flashlane::step::{HostIo, Layout, Numerics};

const ROWS: usize = 64;

/// A decode step of [`ROWS`] requests in this many positions, each at its last.
struct Sealed {
    step: ModelStep,
    layout: Layout,
    memory: HostIo,
    caches: Caches,
    sequences: Vec<Sequence>,
}

impl Sealed {
    fn new(positions: usize) -> Self {
        let numerics =
            Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index: IndexFormat::Bf16 };
        let blocks = ROWS * positions / BLOCK_TOKENS + 1;
        let size = CacheSize { window_pages: ROWS * 4 + 1, blocks, slots: ROWS };
        let (weights, _) = ModelWeights::new(&synthetic::tiny_config(), positions);
        let pools = CacheLayout::new(&weights, numerics, size);
        let step =
            build_step(&weights, &pools, numerics, StepShape::decode(ROWS, positions)).expect("a step");
        let layout = Layout::of(&step.graph).expect("a layout");
        let mut caches = Caches::new(size);
        let sequence = |owner| {
            let mut sequence = Sequence::admit(&mut caches, Owner(owner), positions).expect("pages");
            sequence.extend_window(&mut caches, positions - 1, positions).expect("window pages");
            sequence
        };
        let sequences = (0..ROWS as u64).map(sequence).collect();
        Self { memory: HostIo::new(&step.graph), step, layout, caches, sequences }
    }

    fn seal(&mut self, start: usize) {
        let greedy = SamplingParams::default();
        let segment = |sequence| Segment { sequence, start, tokens: Tokens::Carried, sample: Some(&greedy) };
        let segments: Vec<Segment<'_>> = self.sequences.iter().map(segment).collect();
        fill(&self.step, &mut self.memory, &segments);
        let owners = Held { caches: &self.caches, io: &self.step.io, segments: &segments };
        self.layout.check(&self.memory, &owners).expect("right inputs");
    }
}

pub(crate) fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("seal");
    for positions in [4096, 131_072] {
        let mut sealed = Sealed::new(positions);
        group.bench_function(BenchmarkId::new("64 rows", positions), |b| {
            b.iter(|| sealed.seal(positions - 1));
        });
    }
    group.finish();
}
