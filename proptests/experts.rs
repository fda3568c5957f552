//! `experts` against the oracle: any distribution of tokens over experts.

use flashlane::format::{amax, fp8_block, mxfp4, nvfp4};
use flashlane::ops::{ExpertsDown, ExpertsUp, Op};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, EPS, Stored, Value, config, eps_of};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) experts: usize,
    pub(crate) k: usize,
    pub(crate) hidden: usize,
    pub(crate) width: usize,
    pub(crate) dtype: Dtype,
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1usize..7, 1usize..6, 1usize..5, 8usize..40, 4usize..24, any::<bool>()).prop_map(
        |(rows, experts, k, hidden, width, bf16)| {
            let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
            Shape { rows, experts, k, hidden, width, dtype }
        },
    )
}

/// Everything both operations need.
pub(crate) struct Data {
    x: Vec<f32>,
    ids: Vec<i32>,
    scale: Vec<f32>,
    pub(crate) up: Vec<f32>,
    h: Vec<f32>,
    pub(crate) down: Vec<f32>,
    shared: Vec<f32>,
}

pub(crate) fn data(shape: Shape, ids: Vec<i32>, seed: u64) -> Data {
    let Shape { rows, experts, k, hidden, width, .. } = shape;
    let mut draw = Draw::new(seed);
    Data {
        x: draw.exact(rows * hidden, 1.0),
        ids,
        scale: (0..rows * k).map(|_| 0.5 + draw.uniform() / 4.0).collect(),
        up: draw.exact(experts * 2 * width * hidden, (2.0 / hidden as f32).sqrt()),
        h: draw.exact(rows * k * width, 1.0),
        down: draw.exact(experts * hidden * width, (1.0 / width as f32).sqrt()),
        shared: draw.exact(rows * hidden, 1.0),
    }
}

/// Ids of which about one in eight names no expert.
fn some_ids(shape: Shape, seed: u64) -> Vec<i32> {
    let mut draw = Draw::new(seed ^ 1);
    (0..shape.rows * shape.k)
        .map(|_| match draw.below(8) {
            0 => [-1, i32::try_from(shape.experts).unwrap(), i32::MAX][draw.below(3)],
            _ => i32::try_from(draw.below(shape.experts)).unwrap(),
        })
        .collect()
}

/// The last token's part.
fn last_token(shape: Shape, whole: &Data) -> Data {
    let Shape { k, hidden, width, rows, .. } = shape;
    let last = rows - 1;
    Data {
        x: whole.x[last * hidden..].to_vec(),
        ids: whole.ids[last * k..].to_vec(),
        scale: whole.scale[last * k..].to_vec(),
        up: whole.up.clone(),
        h: whole.h[last * k * width..].to_vec(),
        down: whole.down.clone(),
        shared: whole.shared[last * hidden..].to_vec(),
    }
}

pub(crate) fn up(shape: Shape, data: &Data, limit: f32) -> (Case, Value) {
    let Shape { rows, experts, k, hidden, width, dtype } = shape;
    let mut case = Case::new();
    let tokens = case.tokens(1, &vec![0; rows]);
    let x = case.real("x", dtype, &data.x);
    let ids = case.ints("ids", &data.ids);
    let weights = case.real("weights", Dtype::F32, &data.scale);
    let weight = case.weight("weight", experts * 2 * width, hidden, Stored::Bf16(data.up.clone()));
    let h = case.out("h", dtype, rows * k * width);
    case.op(Op::ExpertsUp(ExpertsUp {
        tokens,
        x,
        ids,
        weights,
        weight,
        h,
        experts,
        k,
        hidden,
        width,
        limit,
    }));
    (case, h)
}

pub(crate) fn down(shape: Shape, data: &Data) -> (Case, Value) {
    let Shape { rows, experts, k, hidden, width, dtype } = shape;
    let mut case = Case::new();
    let tokens = case.tokens(1, &vec![0; rows]);
    let h = case.real("h", dtype, &data.h);
    for slot in (0..rows * k).filter(|&s| expert(shape, data.ids[s]).is_none()) {
        case.unread_elements(&h, slot * width..(slot + 1) * width);
    }
    let ids = case.ints("ids", &data.ids);
    let weight = case.weight("weight", experts * hidden, width, Stored::Bf16(data.down.clone()));
    let shared = case.real("shared", dtype, &data.shared);
    let y = case.out("y", dtype, rows * hidden);
    case.op(Op::ExpertsDown(ExpertsDown { tokens, h, ids, weight, shared, y, experts, k, hidden, width }));
    (case, y)
}

fn expert(shape: Shape, id: i32) -> Option<usize> {
    usize::try_from(id).ok().filter(|&e| e < shape.experts)
}

/// A dot product, and its magnitude: the sum of the absolute products.
fn dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    let products = || a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    (products().sum(), products().map(f64::abs).sum())
}

/// As `linear` with SwiGLU, times the routing weight.
fn up_bound(shape: Shape, data: &Data, limit: f32) -> Vec<f64> {
    let Shape { k, hidden, width, dtype, .. } = shape;
    let mut bound = Vec::new();
    for (slot, &id) in data.ids.iter().enumerate() {
        let Some(e) = expert(shape, id) else {
            bound.extend(vec![0.0; width]);
            continue;
        };
        let x = &data.x[slot / k * hidden..][..hidden];
        for n in 0..width {
            let off = |row: usize| {
                let (v, magnitude) = dot(x, &data.up[(e * 2 * width + row) * hidden..][..hidden]);
                let b = hidden as f64 * EPS * magnitude;
                (v.abs(), b + eps_of(dtype) * (v.abs() + b))
            };
            let ((g, dg), (u, du)) = (off(n), off(width + n));
            let u = (u + du).min(f64::from(limit));
            bound.push(
                f64::from(data.scale[slot]) * (1.1 * dg * u + (g + dg) * du + 10.0 * EPS * (g + dg) * u),
            );
        }
    }
    bound
}

/// k width products and one more, in any order: (k width + 1) eps of their magnitude.
fn down_bound(shape: Shape, data: &Data) -> Vec<f64> {
    let Shape { rows, k, hidden, width, .. } = shape;
    let mut bound = Vec::new();
    for t in 0..rows {
        for n in 0..hidden {
            let magnitude: f64 = (t * k..(t + 1) * k)
                .filter_map(|slot| expert(shape, data.ids[slot]).map(|e| (slot, e)))
                .map(|(slot, e)| {
                    dot(&data.h[slot * width..][..width], &data.down[(e * hidden + n) * width..][..width]).1
                })
                .sum();
            let shared = f64::from(data.shared[t * hidden + n]).abs();
            bound.push((k * width + 2) as f64 * EPS * (magnitude + shared));
        }
    }
    bound
}

fn judge(shape: Shape, ids: Vec<i32>, seed: u64, limit: f32) {
    let data = data(shape, ids, seed);
    let (case, y) = down(shape, &data);
    case.run().agree_within(&y, &down_bound(shape, &data));
    if data.ids.iter().any(|&id| expert(shape, id).is_some()) {
        let (case, h) = up(shape, &data, limit);
        case.run().agree_within(&h, &up_bound(shape, &data, limit));
    }
}

#[test]
fn one_expert_by_hand() {
    let shape = Shape { rows: 1, experts: 2, k: 2, hidden: 2, width: 1, dtype: Dtype::F32 };
    let mut data = data(shape, vec![1, -1], 0);
    // Expert 1 has gate row (1, 0) and up row (0, 1): gate 3, up -4; the limit makes them 2 and -2.
    (data.x, data.scale) = (vec![3.0, -4.0], vec![0.5, 9.0]);
    data.up = vec![f32::NAN, 7.0, 7.0, 7.0, 1.0, 0.0, 0.0, 1.0];
    let (case, h) = up(shape, &data, 2.0);
    for found in case.run().all {
        let got = found.real(&h);
        let want = 0.5 * (2.0 / (1.0 + (-2f64).exp())) * -2.0;
        assert!((got[0] - want).abs() < 1e-6 && got[1] == 0.0, "{}: {got:?}", found.executor);
    }
    (data.h, data.down, data.shared) = (vec![2.0, f32::NAN], vec![7.0, 7.0, 3.0, 5.0], vec![1.0, -1.0]);
    let (case, y) = down(shape, &data);
    for found in case.run().all {
        assert_eq!(found.real(&y), [7.0, 9.0], "{}", found.executor);
    }
}

#[test]
fn q11_all_on_one_expert_on_the_last_or_on_none() {
    let shape = Shape { rows: 90, experts: 9, k: 2, hidden: 16, width: 8, dtype: Dtype::F32 };
    let slots = shape.rows * shape.k;
    judge(shape, vec![0; slots], 1, 10.0);
    judge(shape, vec![8; slots], 2, 10.0);
    judge(shape, vec![-1; slots], 3, 10.0);
    let mut one = vec![0; slots];
    one[slots - 1] = 3;
    judge(shape, one, 4, 10.0);
}

/// `values` in the formats of checkpoints, in rows of `cols`.
pub(crate) fn formats(values: &[f32], cols: usize) -> [Stored; 3] {
    let (codes, scales) = fp8_block::quantize(values, cols).unwrap();
    let fp8 = Stored::Fp8 { codes, scales };
    let (codes, scales) = mxfp4::quantize(values).unwrap();
    let mx = Stored::MxFp4 { codes, scales };
    let nv = nvfp4::quantize(values, nvfp4::scale2_for(amax(values))).unwrap();
    [fp8, mx, Stored::NvFp4 { codes: nv.codes, scales: nv.scales, scale2: nv.scale2 }]
}

fn formats_of_fp4(values: &[f32], cols: usize) -> Vec<Stored> {
    formats(values, cols)[1..].to_vec()
}

fn tail(all: &[f64], len: usize) -> &[f64] {
    &all[all.len() - len..]
}

/// Rows of whole steps of weights, more of them than a warp has stages, some pairs without an expert, and more than eight
/// pairs on one; what a format decodes to is exact, so the bounds are those of its values. The last token alone has the same
/// bits.
fn judge_formats(hidden: usize, width: usize) {
    judge_stored(hidden, width, &|values, cols| formats(values, cols).to_vec());
}

fn judge_stored(hidden: usize, width: usize, formats: &dyn Fn(&[f32], usize) -> Vec<Stored>) {
    let ids = vec![2, 0, 2, 1, -1, 2, 2, 2, 0, 2, 2, 3, 2, 0, 1, 2, 2, 0, 2, 1, 0, 2, 0, 2];
    judge_ids((hidden, width), 3, ids, formats);
}

/// Two experts a token.
fn judge_ids(
    (hidden, width): (usize, usize),
    experts: usize,
    ids: Vec<i32>,
    formats: &dyn Fn(&[f32], usize) -> Vec<Stored>,
) {
    let shape = Shape { rows: ids.len() / 2, experts, k: 2, hidden, width, dtype: Dtype::Bf16 };
    let mut whole = data(shape, ids, 9);
    let (ups, downs) = (formats(&whole.up, hidden), formats(&whole.down, width));
    let one = Shape { rows: 1, ..shape };
    for (as_up, as_down) in ups.into_iter().zip(downs) {
        let (mut up_case, h) = up(shape, &whole, 10.0);
        up_case.weights[0].1.stored = as_up.clone();
        whole.up = up_case.weights[0].1.values().unwrap();
        let (mut down_case, y) = down(shape, &whole);
        down_case.weights[0].1.stored = as_down.clone();
        whole.down = down_case.weights[0].1.values().unwrap();
        let (ups, downs) = (up_case.run(), down_case.run());
        ups.agree_within(&h, &up_bound(shape, &whole, 10.0));
        downs.agree_within(&y, &down_bound(shape, &whole));

        let alone = last_token(shape, &whole);
        let (mut up_one, h_one) = up(one, &alone, 10.0);
        up_one.weights[0].1.stored = as_up;
        let (mut down_one, y_one) = down(one, &alone);
        down_one.weights[0].1.stored = as_down;
        for (many, a, single, b) in [(ups, h, up_one.run(), h_one), (downs, y, down_one.run(), y_one)] {
            for (found, one) in many.all.iter().zip(&single.all) {
                let one = one.real(&b);
                assert_eq!(tail(&found.real(&a), one.len()), one, "{}", found.executor);
            }
        }
    }
}

#[test]
fn every_storage_format_is_the_oracles() {
    judge_formats(512, 256);
}

/// One slice of K a row tile is in `every_storage_format_is_the_oracles`; here are four, and sixteen.
#[test]
fn slices_of_fp4_are_the_oracles() {
    for (hidden, width) in [(1024, 64), (128, 1024), (4096, 64)] {
        judge_stored(hidden, width, &formats_of_fp4);
    }
}

/// Eight pairs of an expert are an item, and two items share what was read of its weights: one, two, three and four of them, the
/// last ones full or of one pair, and a token with one expert twice.
#[test]
fn items_of_an_expert_are_the_oracles() {
    for pairs in [8, 9, 16, 17, 32] {
        let mut ids: Vec<i32> = (0..pairs).map(|_| 1).collect();
        ids.extend([0, 2, 2, 2]);
        ids.resize(ids.len().next_multiple_of(2), -1);
        // Tokens with one, both or none of their pairs on the expert.
        let (half, rows) = (ids.len() / 2, ids.len() / 2);
        let ids = (0..rows).flat_map(|t| [ids[t], ids[half + t]]).collect();
        judge_ids((512, 1024), 3, ids, &formats_of_fp4);
    }
}

/// More experts than stages of weights are on their way at once, with one to three items each.
#[test]
fn many_experts_are_the_oracles() {
    let ids = (0..80).flat_map(|t| [t % 9, (5 * t + t / 9 + 1) % 9]).collect();
    judge_ids((512, 1024), 9, ids, &formats_of_fp4);
}

/// Slices whose scales are all below 2 and not tiny go a shorter way; a block of zeros has the smallest scale.
#[test]
fn large_and_tiny_scales_of_mxfp4_are_the_oracles() {
    judge_stored(512, 1024, &|values, cols| {
        // Rows of `experts_down` alone: after SwiGLU of large sums no bound says much.
        let factors = if cols == 1024 { [1.0, 16777216.0, 0.0] } else { [1.0, 1.0, 0.0] };
        let rows = values.chunks(cols).enumerate();
        let values: Vec<f32> =
            rows.flat_map(|(row, of)| of.iter().map(move |v| v * factors[row / 16 % 3])).collect();
        let (codes, scales) = mxfp4::quantize(&values).unwrap();
        assert_eq!(
            cols == 1024,
            scales.iter().any(|scale| *scale > 137),
            "a scale of which the short way makes no bf16"
        );
        vec![Stored::MxFp4 { codes, scales }]
    });
}

#[test]
fn rows_that_end_within_a_step_are_the_oracles() {
    judge_formats(384, 64);
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn are_the_oracles(shape in shapes(), seed: u64, limit in prop::sample::select(vec![1.0f32, 10.0])) {
        judge(shape, some_ids(shape, seed), seed, limit);
    }

    /// Which experts other rows go to changes no bit of a row.
    #[test]
    fn rows_are_independent(shape in shapes(), seed: u64) {
        let ids = some_ids(shape, seed);
        let whole = data(shape, ids, seed);
        let (one, alone) = (Shape { rows: 1, ..shape }, last_token(shape, &whole));
        for ((many, a), (single, b)) in [(up(shape, &whole, 10.0), up(one, &alone, 10.0)), (down(shape, &whole), down(one, &alone))] {
            let single = single.run();
            for (e, found) in many.run().all.iter().enumerate() {
                let (all, one) = (found.real(&a), single.all[e].real(&b));
                prop_assert_eq!(tail(&all, one.len()), &one[..]);
            }
        }
    }
}
