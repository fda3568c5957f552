//! `linear` against the oracle, and its laws.

use flashlane::format::{amax, fp8_block, mxfp4, nvfp4};
use flashlane::ops::{Epilogue, Linear, Op};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, EPS, Stored, Value, config, eps_of};

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) per_group: usize,
    pub(crate) groups: usize,
    pub(crate) limit: Option<f32>,
    pub(crate) dtype: Dtype,
    pub(crate) f32_out: bool,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (1usize..6, 1usize..200, 1usize..40, 1usize..4);
    (sizes, prop::option::of(prop::sample::select(vec![0.0f32, 0.7, 10.0])), any::<[bool; 2]>()).prop_map(
        |((rows, depth, half, groups), limit, [bf16, f32_out])| Shape {
            rows,
            depth,
            per_group: 2 * half,
            groups: if limit.is_some() { 1 } else { groups },
            limit,
            dtype: if bf16 { Dtype::Bf16 } else { Dtype::F32 },
            f32_out,
        },
    )
}

pub(crate) struct Built {
    pub(crate) case: Case,
    out: Value,
}

pub(crate) fn build(shape: &Shape, x: &[f32], weight: &[f32]) -> Built {
    let mut case = Case::new();
    let weight_rows = shape.per_group * shape.groups;
    let epilogue = shape.limit.map_or(Epilogue::None, |limit| Epilogue::SwiGlu { limit });
    let cols_out = if shape.limit.is_some() { weight_rows / 2 } else { weight_rows };
    let x = case.real("x", shape.dtype, x);
    let weight = case.weight("weight", weight_rows, shape.depth, Stored::Bf16(weight.to_vec()));
    let dtype = if shape.f32_out { Dtype::F32 } else { shape.dtype };
    let out = case.out("out", dtype, shape.rows * cols_out);
    let cols_in = shape.depth * shape.groups;
    let op =
        Linear { x, weight, out, rows: shape.rows, cols_in, weight_rows, groups: shape.groups, epilogue };
    assert_eq!(op.cols_out(), cols_out);
    case.op(Op::Linear(op));
    Built { case, out }
}

pub(crate) fn inputs(shape: &Shape, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut draw = Draw::new(seed);
    let scale = (1.0 / shape.depth as f32).sqrt();
    (
        draw.exact(shape.rows * shape.depth * shape.groups, 1.0),
        draw.exact(shape.per_group * shape.groups * shape.depth, scale),
    )
}

/// Per row and weight row: the exact sum, and what an f32 sum of K products can be off by in any order, K eps sum |x w|.
fn sums(shape: &Shape, x: &[f32], weight: &[f32]) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for r in 0..shape.rows {
        for n in 0..shape.per_group * shape.groups {
            let x = &x[(r * shape.groups + n / shape.per_group) * shape.depth..][..shape.depth];
            let w = &weight[n * shape.depth..][..shape.depth];
            let products = || x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b));
            let magnitude: f64 = products().map(f64::abs).sum();
            all.push((products().sum(), shape.depth as f64 * EPS * magnitude));
        }
    }
    all
}

/// silu has a slope of at most 1.1 and |silu(g)| <= |g|; g and u are off by their sums' bound and one rounding each to
/// the activation type, and the epilogue adds about eight roundings of f32.
fn swiglu_bound(gate: (f64, f64), up: (f64, f64), limit: f32, dtype: Dtype) -> f64 {
    let off = |(v, b): (f64, f64)| b + eps_of(dtype) * (v.abs() + b);
    let limit = if limit > 0.0 { f64::from(limit) } else { f64::INFINITY };
    let (g, u) = (gate.0.min(limit).abs() + off(gate), (up.0.abs() + off(up)).min(limit));
    1.1 * off(gate) * u + g * off(up) + 8.0 * EPS * g * u
}

fn bounds(shape: &Shape, x: &[f32], weight: &[f32]) -> Vec<f64> {
    let sums = sums(shape, x, weight);
    let Some(limit) = shape.limit else { return sums.iter().map(|s| s.1).collect() };
    let rows = sums.chunks(shape.per_group);
    rows.flat_map(|row| {
        let (gate, up) = row.split_at(shape.per_group / 2);
        gate.iter().zip(up).map(|(&g, &u)| swiglu_bound(g, u, limit, shape.dtype)).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn two_groups_by_hand() {
    // Group 0 sees (1, 2), group 1 sees (3, 4); each has two outputs.
    let shape =
        Shape { rows: 1, depth: 2, per_group: 2, groups: 2, limit: None, dtype: Dtype::F32, f32_out: true };
    let built = build(&shape, &[1.0, 2.0, 3.0, 4.0], &[1.0, 0.0, 10.0, 1.0, 0.0, 1.0, -1.0, 2.0]);
    for found in built.case.run().all {
        assert_eq!(found.real(&built.out), [1.0, 12.0, 4.0, 5.0], "{}", found.executor);
    }
}

#[test]
fn swiglu_clamps_the_gate_from_above_and_the_up_on_both_sides() {
    let shape = Shape {
        rows: 4,
        depth: 2,
        per_group: 2,
        groups: 1,
        limit: Some(2.0),
        dtype: Dtype::F32,
        f32_out: true,
    };
    let silu = |g: f64| g / (1.0 + (-g).exp());
    // Rows are (gate, up).
    let built = build(&shape, &[5.0, -7.0, -5.0, 7.0, 1.0, 1.5, 0.0, 9.0], &[1.0, 0.0, 0.0, 1.0]);
    let want = [silu(2.0) * -2.0, silu(-5.0) * 2.0, silu(1.0) * 1.5, 0.0];
    for found in built.case.run().all {
        for (f, w) in found.real(&built.out).iter().zip(want) {
            assert!((f - w).abs() < 1e-6, "{}: {f} {w}", found.executor);
        }
    }
}

/// `values` in the formats of checkpoints, in rows of `depth`.
pub(crate) fn formats(values: &[f32], depth: usize) -> [Stored; 3] {
    let (codes, scales) = fp8_block::quantize(values, depth).unwrap();
    let fp8 = Stored::Fp8 { codes, scales };
    let (codes, scales) = mxfp4::quantize(values).unwrap();
    let mx = Stored::MxFp4 { codes, scales };
    let nv = nvfp4::quantize(values, nvfp4::scale2_for(amax(values))).unwrap();
    [fp8, mx, Stored::NvFp4 { codes: nv.codes, scales: nv.scales, scale2: nv.scale2 }]
}

/// The same numbers in the formats of checkpoints: what a format decodes to is exact, so the bound is that of its values.
#[test]
fn every_storage_format_is_the_oracles() {
    let mut draw = Draw::new(7);
    let (rows, depth, outs) = (3, 256, 132);
    let values = draw.normals(outs * depth, 0.1);
    let dtypes = [Dtype::Bf16, Dtype::F32, Dtype::Bf16];
    for (stored, dtype) in formats(&values, depth).into_iter().zip(dtypes) {
        let shape = Shape { rows, depth, per_group: outs, groups: 1, limit: None, dtype, f32_out: true };
        let x = draw.exact(rows * depth, 1.0);
        let mut built = build(&shape, &x, &values);
        built.case.weights[0].1.stored = stored;
        let decoded = built.case.weights[0].1.values().unwrap();
        assert!(decoded.iter().zip(&values).any(|(a, b)| a != b), "quantising must change something");
        built.case.run().agree_within(&built.out, &bounds(&shape, &x, &decoded));
    }
}

/// Many rows and few go through different kernels: each is the oracle's, and a row has the same bits in all.
fn judge_row_counts(depth: usize, groups: usize, limit: Option<f32>, per_group: usize, counts: &[usize]) {
    let mut draw = Draw::new(11);
    let rows = counts[counts.len() - 1];
    let shape = Shape { rows, depth, per_group, groups, limit, dtype: Dtype::Bf16, f32_out: true };
    let values = draw.exact(shape.per_group * groups * depth, (1.0 / depth as f32).sqrt());
    let x = draw.exact(shape.rows * depth * groups, 1.0);
    let plain = Stored::Bf16(values.clone());
    for stored in formats(&values, depth).into_iter().chain([plain]) {
        let run = |rows: usize| {
            let mut built = build(&Shape { rows, ..shape.clone() }, &x[..rows * depth * groups], &values);
            built.case.weights[0].1.stored = stored.clone();
            let decoded = built.case.weights[0].1.values().unwrap();
            (built.case.run(), built.out, decoded)
        };
        let (many, out, decoded) = run(shape.rows);
        many.agree_within(&out, &bounds(&shape, &x, &decoded));
        for &rows in &counts[..counts.len() - 1] {
            let (few, few_out, _) = run(rows);
            for (few, many) in few.all.iter().zip(&many.all) {
                let few_bits = few.real(&few_out);
                assert_eq!(few_bits, many.real(&out)[..few_bits.len()], "{} with {rows} rows", few.executor);
            }
        }
    }
}

#[test]
fn row_counts_change_no_bit() {
    judge_row_counts(512, 1, None, 132, &[1, 8, 9, 32, 33, 64, 65, 130]);
}

/// So deep that every segment of the sum goes round its ring of stages.
#[test]
fn row_counts_change_no_bit_over_a_deep_sum() {
    judge_row_counts(5632, 1, None, 20, &[1, 9, 40, 66]);
}

#[test]
fn row_counts_change_no_bit_with_groups_and_rows_that_end_within_a_step() {
    judge_row_counts(160, 2, None, 132, &[1, 8, 9, 33, 70]);
}

/// More tiles than blocks run at once, of two groups.
#[test]
fn row_counts_change_no_bit_over_many_columns() {
    judge_row_counts(128, 2, None, 3300, &[1, 8, 9]);
}

#[test]
fn row_counts_change_no_bit_with_swiglu() {
    judge_row_counts(256, 1, Some(10.0), 132, &[1, 8, 9, 33, 70]);
}

/// Kernels are chosen by how much of a device they fill, too: they run here on one that is taken for others, by size.
#[cfg(feature = "cuda")]
#[test]
fn the_size_of_a_device_changes_no_bit() {
    use std::sync::Arc;

    use crate::support::cuda::{Cuda, device};
    use flashlane::cuda::{Backend as _, Recorder};

    let Some(device) = device() else { return };
    let recorder = Recorder::new(device);
    let (large, small) = (recorder.shared_memory(), 99 << 10);
    let sizes = [(1, large), (4, large), (8, large), (132, large), (6, small)]
        .map(|(n, shared)| Cuda::new("device of another size", Arc::new(recorder.as_if(n, shared))));
    let (depth, per_group, rows) = (768, 70, 66);
    let mut draw = Draw::new(5);
    let values = draw.exact(per_group * depth, (1.0 / depth as f32).sqrt());
    let x = draw.exact(rows * depth, 1.0);
    for stored in formats(&values, depth).into_iter().chain([Stored::Bf16(values.clone())]) {
        let run = |rows: usize, limit, size: &Cuda| {
            let shape = Shape { rows, depth, per_group, groups: 1, limit, dtype: Dtype::Bf16, f32_out: true };
            let mut built = build(&shape, &x[..rows * depth], &values);
            built.case.weights[0].1.stored = stored.clone();
            built.case.run_on(size).real(&built.out)
        };
        for limit in [None, Some(10.0)] {
            let one = run(1, limit, &sizes[0]);
            let all = run(rows, limit, &sizes[0]);
            assert_eq!(one, all[..one.len()], "1 row");
            for (rows, size) in [9, 40, 66].into_iter().flat_map(|rows| sizes.iter().map(move |s| (rows, s)))
            {
                let found = run(rows, limit, size);
                assert_eq!(found, all[..found.len()], "{rows} rows");
            }
        }
    }
    let reached = recorder.launched();
    let of_large = ["linear_64_eighth", "linear_64_half", "linear_64_turns", "linear_128", "linear_64_alone"];
    let of_large = of_large.iter().filter(|_| large >= 227 << 10);
    for kernel in ["linear_8", "linear_32", "linear_64", "linear_32_eighth"].iter().chain(of_large) {
        assert!(reached.contains(*kernel), "{kernel} is not among {reached:?}");
    }
}

proptest! {
    #![proptest_config(config(32))]

    #[test]
    fn is_the_oracles(shape in shapes(), seed: u64) {
        // Few columns may all be near zero under SwiGLU; the bound is then compared with nothing.
        prop_assume!(shape.limit.is_none() || shape.per_group * shape.rows >= 12);
        let (x, weight) = inputs(&shape, seed);
        let built = build(&shape, &x, &weight);
        built.case.run().agree_within(&built.out, &bounds(&shape, &x, &weight));
    }

    /// A row has the same bits alone as among others.
    #[test]
    fn rows_do_not_change_each_other(shape in shapes(), seed: u64) {
        let (x, weight) = inputs(&shape, seed);
        let whole = build(&shape, &x, &weight);
        let (width, last) = (shape.depth * shape.groups, shape.rows - 1);
        let alone = build(&Shape { rows: 1, ..shape.clone() }, &x[last * width..], &weight);
        let single = alone.case.run();
        for (e, found) in whole.case.run().all.iter().enumerate() {
            let all = found.real(&whole.out);
            let one = single.all[e].real(&alone.out);
            prop_assert_eq!(&all[all.len() - one.len()..], &one[..]);
        }
    }

    /// Without an epilogue, twice the input is exactly twice the output.
    #[test]
    fn doubling_is_exact(shape in shapes(), seed: u64) {
        prop_assume!(shape.limit.is_none());
        let (x, weight) = inputs(&shape, seed);
        let doubled: Vec<f32> = x.iter().map(|v| 2.0 * v).collect();
        let (once, twice) = (build(&shape, &x, &weight), build(&shape, &doubled, &weight));
        let twice_run = twice.case.run();
        for (e, found) in once.case.run().all.iter().enumerate() {
            let want: Vec<f64> = found.real(&once.out).iter().map(|v| 2.0 * v).collect();
            prop_assert_eq!(twice_run.all[e].real(&twice.out), want);
        }
    }
}
