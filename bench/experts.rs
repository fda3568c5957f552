//! `experts`: gate/up and down in NVFP4. Elements are multiply-adds.

use criterion::{BenchmarkId, Criterion, Throughput};
use flashlane::checkpoint::WeightFormat;
use flashlane::ops::{ExpertsDown, ExpertsUp, Op};

use crate::node::{Bench, noise};

const EXPERTS: usize = 8;
const K: usize = 2;

fn ids(rows: usize) -> Vec<i32> {
    (0..rows as i32).flat_map(|t| [t * 3 % 4, 4 + t * 5 % 4]).collect()
}

pub(crate) fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("experts");
    for (hidden, width) in [(256, 128), (1024, 512)] {
        for rows in [1, 8, 256] {
            group.throughput(Throughput::Elements((rows * K * 2 * width * hidden) as u64));
            group.bench_function(BenchmarkId::new(format!("up/{hidden}x{width}"), rows), |b| {
                let mut bench = Bench::new();
                let tokens = bench.tokens(1, &vec![5; rows]);
                let x = bench.activation(&noise(1, rows * hidden));
                let (ids, weights) = (bench.ints(&ids(rows)), bench.floats(&noise(2, rows * K)));
                let weight = bench.matrix(WeightFormat::Nvfp4, EXPERTS * 2 * width, hidden);
                let h = bench.out(rows * K * width);
                let (experts, k, limit) = (EXPERTS, K, 10.0);
                let op = ExpertsUp { tokens, x, ids, weights, weight, h, experts, k, hidden, width, limit };
                bench.iter(Op::ExpertsUp(op), b);
            });
            group.throughput(Throughput::Elements((rows * K * width * hidden) as u64));
            group.bench_function(BenchmarkId::new(format!("down/{hidden}x{width}"), rows), |b| {
                let mut bench = Bench::new();
                let tokens = bench.tokens(1, &vec![5; rows]);
                let h = bench.activation(&noise(1, rows * K * width));
                let ids = bench.ints(&ids(rows));
                let weight = bench.matrix(WeightFormat::Nvfp4, EXPERTS * hidden, width);
                let shared = bench.activation(&noise(3, rows * hidden));
                let y = bench.out(rows * hidden);
                let (experts, k) = (EXPERTS, K);
                let op = ExpertsDown { tokens, h, ids, weight, shared, y, experts, k, hidden, width };
                bench.iter(Op::ExpertsDown(op), b);
            });
        }
    }
    group.finish();
}
