//! `embed`: a copy, so exact on every executor.

use flashlane::ops::{Embed, Op};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, Stored, Value, config};

const VOCAB: usize = 7;

fn build(positions: &[i32], token: &[i32], table: &[f32], streams: usize, dtype: Dtype) -> (Case, Value) {
    let mut case = Case::new();
    let hidden = table.len() / VOCAB;
    let tokens = case.tokens(1, positions);
    let token = case.ints("token", token);
    let weight = case.weight("weight", VOCAB, hidden, Stored::Bf16(table.to_vec()));
    let out = case.out("out", dtype, positions.len() * streams * hidden);
    case.op(Op::Embed(Embed { tokens, token, weight, out, vocab: VOCAB, hidden, streams }));
    (case, out)
}

#[test]
fn q13_tokens_outside_the_vocabulary_and_padding_give_zeros() {
    let table: Vec<f32> = (1..=14).map(|i| i as f32).collect();
    let token = [2, -1, 7, i32::MAX, i32::MIN, 6, 3];
    let (case, out) = build(&[0, 1, 2, 3, 4, 5, -1], &token, &table, 2, Dtype::F32);
    for found in case.run().all {
        let rows: Vec<Vec<f64>> = found.real(&out).chunks(4).map(<[f64]>::to_vec).collect();
        assert_eq!(rows[0], [5.0, 6.0, 5.0, 6.0], "{}", found.executor);
        assert_eq!(rows[5], [13.0, 14.0, 13.0, 14.0], "{}", found.executor);
        for t in [1, 2, 3, 4, 6] {
            assert_eq!(rows[t], [0.0; 4], "{}: row {t}", found.executor);
        }
    }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn is_the_oracles(seed: u64, rows in 1usize..7, hidden in 1usize..70, streams in 1usize..5, bf16: bool) {
        let mut draw = Draw::new(seed);
        let table = draw.exact(VOCAB * hidden, 1.0);
        let positions: Vec<i32> = (0..rows).map(|_| i32::try_from(draw.below(4)).unwrap() - 1).collect();
        let token: Vec<i32> = (0..rows).map(|_| i32::try_from(draw.below(VOCAB + 2)).unwrap() - 1).collect();
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let (case, out) = build(&positions, &token, &table, streams, dtype);
        let runs = case.run();
        runs.agree_exactly(out.buffer);
        for (i, v) in runs.oracle().real(&out).iter().enumerate() {
            let (t, column) = (i / (streams * hidden), i % hidden);
            let id = usize::try_from(token[t]).ok().filter(|&id| id < VOCAB && positions[t] >= 0);
            prop_assert_eq!(*v, id.map_or(0.0, |id| f64::from(table[id * hidden + column])));
        }
    }
}
