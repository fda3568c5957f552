//! `rmsnorm` of a layer's width.

use flashlane::ops::{Op, RmsNorm};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype};

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let width = at.pick(256, 4096);
    let bench = |rows| {
        Bench::new("rmsnorm", format!("{rows} rows"), rows, move |case, rows| node(case, rows, width))
            .moves(4 * rows * width + 4 * width, 4 * rows * width)
    };
    [1, 64].map(bench).into()
}

pub(crate) fn node(case: &mut Case, rows: usize, width: usize) {
    let weight = case.noise_vector("weight", width);
    let x = case.noise("x", Dtype::Bf16, rows * width);
    let out = case.out("out", Dtype::Bf16, rows * width);
    case.op(Op::RmsNorm(RmsNorm { x, weight, out, rows, width, eps: 1e-6 }));
}
