//! `index_query`: the indexer's heads, rotated, spread and stored as keys are.

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{INDEX_DIM, IndexQuery, Op};

use crate::bench::{At, Bench};
use crate::support::Dtype;

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let heads = at.pick(8, 64);
    let formats = [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4];
    formats.into_iter().flat_map(|format| [1, 64].map(|rows| bench(format, rows, heads))).collect()
}

fn bench(format: IndexFormat, rows: usize, heads: usize) -> Bench {
    let max_positions = 64;
    Bench::new("index_query", format!("{format:?} {rows} rows"), rows, move |case, rows| {
        let tokens = case.rows_at(rows, 5);
        let q = case.noise("q", Dtype::Bf16, rows * heads * INDEX_DIM);
        let rope = case.rope(max_positions);
        let codes = case.out("codes", Dtype::U8, rows * heads * format.code_bytes());
        let scales = rows * heads * format.scale_bytes();
        let scales = (scales > 0).then(|| case.out("scales", Dtype::U8, scales));
        case.op(Op::IndexQuery(IndexQuery { tokens, q, rope, codes, scales, heads, format, max_positions }));
    })
    // The Hadamard matrix has seven stages of additions.
    .moves(rows * heads * (2 * INDEX_DIM + format.row_bytes()), 7 * rows * heads * INDEX_DIM)
}
