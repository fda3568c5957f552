//! `router`: the experts of a token, by score.

use flashlane::ops::{Op, Router, Routing};

use crate::bench::{At, Bench};
use crate::support::Dtype;

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let (experts, k) = at.pick((8, 2), (256, 6));
    [1, 64].map(|rows| bench(rows, experts, k)).into()
}

fn bench(rows: usize, experts: usize, k: usize) -> Bench {
    Bench::new("router", format!("{rows} rows"), rows, move |case, rows| {
        let tokens = case.rows_at(rows, 5);
        let logits = case.noise("logits", Dtype::F32, rows * experts);
        let routing = Routing::Scored { bias: case.noise_vector("bias", experts) };
        let ids = case.out("ids", Dtype::I32, rows * k);
        let weights = case.out("weights", Dtype::F32, rows * k);
        case.op(Op::Router(Router { tokens, logits, routing, ids, weights, experts, k, factor: 1.5 }));
    })
    .moves(4 * experts + rows * (4 * experts + 8 * k), 0)
}
