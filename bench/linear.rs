//! `linear` in each weight format, for one row, a batch and a prefill block. Elements are multiply-adds.

use criterion::{BenchmarkId, Criterion, Throughput};
use flashlane::checkpoint::WeightFormat;
use flashlane::ops::{Epilogue, Linear, Op};

use crate::node::{Bench, noise};

pub(crate) fn all(c: &mut Criterion) {
    // The largest projections of the built-in model, and one of the full model's.
    for (cols, weight_rows) in [(128, 4096), (2048, 256), (4096, 1024)] {
        let mut group = c.benchmark_group(format!("linear/{cols}x{weight_rows}"));
        for rows in [1, 8, 256] {
            group.throughput(Throughput::Elements((rows * cols * weight_rows) as u64));
            for format in [WeightFormat::Bf16, WeightFormat::Fp8Block, WeightFormat::Nvfp4] {
                group.bench_function(BenchmarkId::new(format!("{format:?}"), rows), |b| {
                    let mut bench = Bench::new();
                    let x = bench.activation(&noise(1, rows * cols));
                    let weight = bench.matrix(format, weight_rows, cols);
                    let out = bench.out(rows * weight_rows);
                    let epilogue = Epilogue::None;
                    let op = Linear { x, weight, out, rows, cols_in: cols, weight_rows, groups: 1, epilogue };
                    bench.iter(Op::Linear(op), b);
                });
            }
        }
        group.finish();
    }
}
