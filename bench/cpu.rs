//! Operations on the CPU path, by the wall clock.

use criterion::{Bencher, Criterion, Throughput};
use flashlane::cpu::simd::Simd;
use flashlane::cpu::{Weights, run};
use flashlane::step::{Memory, Operands, Resident};

use crate::bench::Bench;
use crate::check;
use crate::support::Case;

pub(crate) fn all(c: &mut Criterion, benches: Vec<Bench>) {
    for bench in benches {
        let mut group = c.benchmark_group(bench.kernel);
        group.throughput(match bench.flops {
            0 => Throughput::Bytes(bench.bytes as u64),
            flops => Throughput::Elements(flops as u64),
        });
        let mut ready = None;
        group.bench_function(&bench.shape, |b| ready.get_or_insert_with(|| Ready::new(&bench)).iter(b));
        group.finish();
    }
}

/// One node over its memory.
struct Ready {
    case: Case,
    weights: Weights,
    memory: Memory,
    resident: Resident,
}

impl Ready {
    fn new(bench: &Bench) -> Self {
        check::by_the_oracle(bench);
        let case = bench.case(1);
        let (memory, resident) = case.memory(0);
        let weights = case.cpu_weights(Simd::detect()).expect("weights");
        Self { case, weights, memory, resident }
    }

    fn iter(&mut self, b: &mut Bencher<'_>) {
        let Self { case, weights, memory, resident } = self;
        let (graph, plan, node) = (&case.graph, &case.plan, &case.graph.nodes[0]);
        rayon::scope(|_| {
            b.iter(|| {
                let operands = Operands::new(graph, plan, node, memory, resident).expect("operands");
                run(graph, node, operands, weights).expect("a run");
            });
        });
    }
}
