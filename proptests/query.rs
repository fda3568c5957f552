//! `query` against the oracle, and its laws.

use flashlane::ops::{HEAD_DIM, Op, Query, ROPE_DIM};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, Off, Value, config, norm_off, rope_off, rope_table};

const POSITIONS: usize = 40;
const PLAIN: [f32; HEAD_DIM] = [1.0; HEAD_DIM];

pub(crate) fn build(positions: &[i32], q: &[f32], dtype: Dtype) -> (Case, Value) {
    let mut case = Case::new();
    let tokens = case.tokens(1, positions);
    let heads = q.len() / HEAD_DIM / positions.len();
    let q = case.real("q", dtype, q);
    for t in (0..positions.len()).filter(|&t| positions[t] < 0) {
        case.unread_elements(&q, t * heads * HEAD_DIM..(t + 1) * heads * HEAD_DIM);
    }
    let rope = case.rope(POSITIONS);
    let out = case.out("out", dtype, q.len);
    case.op(Op::Query(Query { tokens, q, rope, out, heads, max_positions: POSITIONS, eps: 1e-6 }));
    (case, out)
}

#[test]
fn only_the_last_64_dims_turn_in_interleaved_pairs() {
    let (case, out) = build(&[0, 1, -1], &[1.0; 3 * HEAD_DIM], Dtype::F32);
    for found in case.run().all {
        let y = found.real(&out);
        assert!(y[..HEAD_DIM + 448].iter().all(|v| (v - 1.0).abs() < 1e-6), "{}", found.executor);
        // At position 1 pair i turns by 10000^(-i / 32).
        for i in [0usize, 1, 31] {
            let angle = 10_000f64.powf(-(i as f64) / 32.0);
            let pair = &y[HEAD_DIM + 448 + 2 * i..][..2];
            let want = [angle.cos() - angle.sin(), angle.sin() + angle.cos()];
            assert!(pair.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{}: pair {i}", found.executor);
        }
        assert_eq!(y[2 * HEAD_DIM..], [0.0; HEAD_DIM]);
    }
}

proptest! {
    #![proptest_config(config(16))]

    /// The norm's and the rotation's bounds, one after the other. A position beyond the table takes its last row.
    #[test]
    fn is_the_oracles(seed: u64, rows in 1usize..4, heads in 1usize..5, bf16: bool) {
        let mut draw = Draw::new(seed);
        let q = draw.exact(rows * heads * HEAD_DIM, 3.0);
        let mut positions: Vec<i32> =
            (0..rows).map(|_| i32::try_from(draw.below(POSITIONS + 5)).unwrap() - 1).collect();
        positions[0] = positions[0].max(0);
        let (case, out) = build(&positions, &q, if bf16 { Dtype::Bf16 } else { Dtype::F32 });
        let runs = case.run();
        let table = rope_table(POSITIONS);
        let bound = q.chunks(HEAD_DIM).enumerate().flat_map(|(i, head)| {
            let Ok(position) = usize::try_from(positions[i / heads]) else { return vec![0.0; HEAD_DIM] };
            let angles = &table[position.min(POSITIONS - 1) * ROPE_DIM..][..ROPE_DIM];
            let head = Off::exact(head.iter().map(|&v| f64::from(v)));
            rope_off(&norm_off(&head, &PLAIN, 1e-6), angles).bound
        });
        runs.agree_within(&out, &bound.collect::<Vec<_>>());
    }

    /// A rotation keeps lengths: every head comes out with the norm sqrt(512).
    #[test]
    fn every_head_has_unit_mean_square(seed: u64, position in 0i32..POSITIONS as i32) {
        let q = Draw::new(seed).exact(2 * HEAD_DIM, 1.0);
        let (case, out) = build(&[position], &q, Dtype::F32);
        for found in case.run().all {
            for head in found.real(&out).chunks(HEAD_DIM) {
                let mean = head.iter().map(|v| v * v).sum::<f64>() / HEAD_DIM as f64;
                prop_assert!((mean - 1.0).abs() < 1e-4, "{}", mean);
            }
        }
    }
}
