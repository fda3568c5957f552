//! `topk`: the rows with the best scores.

use flashlane::ops::{Op, TopK};

use crate::bench::{At, Bench};
use crate::support::Dtype;

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let few = vec![(1, 2048, 512), (8, 2048, 512)];
    let many = [1, 8, 64].map(|batch| [2048, 8192, 32768, 262_144].map(|rows| (batch, rows, 512))).concat();
    at.pick(few, many).into_iter().map(bench).collect()
}

fn bench((batch, width, k): (usize, usize, usize)) -> Bench {
    Bench::new("topk", format!("{batch} x {width} k {k}"), batch, move |case, batch| {
        let tokens = case.rows_at(batch, 4 * width - 1);
        let logits = case.noise("logits", Dtype::F32, batch * width);
        let selected = case.out("selected", Dtype::I32, batch * k);
        case.op(Op::TopK(TopK { tokens, logits, width, selected, k }));
    })
    .moves(4 * batch * (width + k), 0)
    .launched((8_000_000 / (batch * width)).clamp(1, 8)) // As `tools/rivals` has it.
}
