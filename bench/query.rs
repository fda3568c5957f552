//! `query`: the heads of a query, normed and rotated.

use flashlane::ops::{HEAD_DIM, Op, Query};

use crate::bench::{At, Bench};
use crate::support::Dtype;

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let heads = at.pick(8, 64);
    [1, 64].map(|rows| bench(rows, heads)).into()
}

fn bench(rows: usize, heads: usize) -> Bench {
    let (max_positions, len) = (64, heads * HEAD_DIM);
    Bench::new("query", format!("{rows} rows"), rows, move |case, rows| {
        let tokens = case.rows_at(rows, 5);
        let q = case.noise("q", Dtype::Bf16, rows * len);
        let rope = case.rope(max_positions);
        let out = case.out("out", Dtype::Bf16, rows * len);
        case.op(Op::Query(Query { tokens, q, rope, out, heads, max_positions, eps: 1e-6 }));
    })
    .moves(4 * rows * len, 4 * rows * len)
}
