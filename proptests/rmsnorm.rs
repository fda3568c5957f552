//! `rmsnorm` against the oracle, and its laws.

use flashlane::ops::{Op, RmsNorm};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, EPS, Value, config};

pub(crate) fn case(rows: usize, x: &[f32], weight: &[f32], dtype: Dtype) -> (Case, Value) {
    let mut case = Case::new();
    let width = weight.len();
    let x = case.real("x", dtype, x);
    let weight = case.vector("weight", weight);
    let out = case.out("out", dtype, rows * width);
    case.op(Op::RmsNorm(RmsNorm { x, weight, out, rows, width, eps: 1e-6 }));
    (case, out)
}

#[test]
fn three_and_four_by_hand() {
    // mean(9, 16) = 12.5; 3 / sqrt(12.5) * 2 and 4 / sqrt(12.5) * 0.5.
    let (case, out) = case(1, &[3.0, 4.0], &[2.0, 0.5], Dtype::F32);
    for found in case.run().all {
        let y = found.real(&out);
        assert!((y[0] - 1.697_056).abs() < 1e-6 && (y[1] - 0.565_685).abs() < 1e-6, "{y:?}");
    }
}

proptest! {
    #![proptest_config(config(24))]

    /// The sum of n squares in f32, in any order, is off by at most n eps of itself, so its root by n eps / 2; division,
    /// root and two products add four roundings: (n / 2 + 4) eps |out|.
    #[test]
    fn is_the_oracles(
        seed: u64, rows in 1usize..5, width in 1usize..300, bf16: bool, scale in prop::sample::select(vec![1e-3f32, 1.0, 300.0]),
    ) {
        let mut draw = Draw::new(seed);
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let (x, weight) = (draw.exact(rows * width, scale), draw.normals(width, 1.0));
        let (case, out) = case(rows, &x, &weight, dtype);
        let runs = case.run();
        let want = runs.oracle().real(&out);
        let bound: Vec<f64> = want.iter().map(|v| (width as f64 / 2.0 + 4.0) * EPS * v.abs()).collect();
        runs.agree_within(&out, &bound);
    }

    /// A row's result depends on that row alone.
    #[test]
    fn rows_are_independent(seed: u64, rows in 2usize..6) {
        let mut draw = Draw::new(seed);
        let width = 64;
        let (x, weight) = (draw.exact(rows * width, 1.0), draw.normals(width, 1.0));
        let (whole, out) = case(rows, &x, &weight, Dtype::F32);
        let alone: Vec<_> = (0..rows)
            .map(|r| case(1, &x[r * width..(r + 1) * width], &weight, Dtype::F32))
            .map(|(case, out)| (case.run(), out))
            .collect();
        for (e, found) in whole.run().all.iter().enumerate() {
            let rowwise: Vec<f64> = alone.iter().flat_map(|(runs, out)| runs.all[e].real(out)).collect();
            prop_assert_eq!(found.real(&out), rowwise);
        }
    }
}
