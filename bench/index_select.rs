//! `index_select`: the rows with the best scores, without the scores.

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{INDEX_DIM, IndexSelect, Op};

use crate::bench::{At, Bench};
use crate::index_logits::{SCALE, Scores, bytes, heads, launches};
use crate::support::Dtype;

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let few = vec![(1, 512, 64), (8, 512, 64)];
    let many = [1, 8, 64].map(|batch| [2048, 8192, 32768].map(|rows| (batch, rows, 512))).concat();
    at.pick(few, many).into_iter().map(|shape| bench(IndexFormat::Fp8, shape, heads(at))).collect()
}

fn bench(format: IndexFormat, (batch, rows, k): (usize, usize, usize), heads: usize) -> Bench {
    Bench::new("index_select", format!("{format:?} {batch} x {rows} k {k}"), batch, move |case, batch| {
        let Scores { tokens, codes, scales, weights, keys } = Scores::new(case, format, (batch, heads, rows));
        let selected = case.out("selected", Dtype::I32, batch * k);
        let scale = SCALE;
        case.op(Op::IndexSelect(IndexSelect {
            tokens,
            codes,
            scales,
            weights,
            keys,
            selected,
            k,
            heads,
            format,
            scale,
        }));
    })
    .moves(bytes(format, batch, heads, rows) + 4 * batch * k, 2 * batch * rows * heads * (INDEX_DIM + 1))
    .launched(launches(batch, rows))
}
