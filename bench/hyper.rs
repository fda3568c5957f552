//! `hyper`: streams mixed before a layer, after it, and after the last.

use flashlane::ops::{HyperHead, HyperPost, HyperPre, Op, SINKHORN_DEFAULT};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype};

/// Streams.
const N: usize = 4;
const EPS: f32 = 1e-6;

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let hidden = at.pick(256, 4096);
    [1, 64].into_iter().flat_map(|rows| [pre(rows, hidden), post(rows, hidden), head(rows, hidden)]).collect()
}

fn pre(rows: usize, hidden: usize) -> Bench {
    let mixed = 2 * N + N * N;
    let node = move |case: &mut Case, rows: usize| {
        let tokens = case.rows_at(rows, 5);
        let streams = case.noise("streams", Dtype::Bf16, rows * N * hidden);
        let mix = case.noise_vector("mix", mixed * N * hidden);
        let base = case.noise_vector("base", mixed);
        let scale = case.noise_vector("scale", 3);
        let norm = case.noise_vector("norm", hidden);
        let out = case.out("out", Dtype::Bf16, rows * hidden);
        let post = case.out("post", Dtype::F32, rows * N);
        let comb = case.out("comb", Dtype::F32, rows * N * N);
        let (sinkhorn_iters, eps, hc_eps, n) = (SINKHORN_DEFAULT, EPS, EPS, N);
        let op = HyperPre {
            tokens,
            streams,
            mix,
            base,
            scale,
            norm,
            out,
            post,
            comb,
            n,
            hidden,
            sinkhorn_iters,
            eps,
            hc_eps,
        };
        case.op(Op::HyperPre(op));
    };
    let bytes = 4 * mixed * N * hidden + rows * (2 * N + 2) * hidden;
    Bench::new("hyper_pre", format!("{rows} rows"), rows, node)
        .moves(bytes, 2 * rows * (mixed + 1) * N * hidden)
}

fn post(rows: usize, hidden: usize) -> Bench {
    Bench::new("hyper_post", format!("{rows} rows"), rows, move |case, rows| post_node(case, rows, hidden))
        .moves(rows * (4 * N + 2) * hidden, 2 * rows * N * (N + 1) * hidden)
}

pub(crate) fn post_node(case: &mut Case, rows: usize, hidden: usize) {
    let tokens = case.rows_at(rows, 5);
    let streams = case.noise("streams", Dtype::Bf16, rows * N * hidden);
    let y = case.noise("y", Dtype::Bf16, rows * hidden);
    let post = case.noise("post", Dtype::F32, rows * N);
    let comb = case.noise("comb", Dtype::F32, rows * N * N);
    let out = case.out("out", Dtype::Bf16, rows * N * hidden);
    case.op(Op::HyperPost(HyperPost { tokens, streams, y, post, comb, out, n: N, hidden }));
}

fn head(rows: usize, hidden: usize) -> Bench {
    let node = move |case: &mut Case, rows: usize| {
        let tokens = case.rows_at(rows, 5);
        let streams = case.noise("streams", Dtype::Bf16, rows * N * hidden);
        let chosen = case.ints("rows", &(0..rows as i32).collect::<Vec<_>>());
        let mix = case.noise_vector("mix", N * N * hidden);
        let base = case.noise_vector("base", N);
        let scale = case.noise_vector("scale", 1);
        let norm = case.noise_vector("norm", hidden);
        let out = case.out("out", Dtype::Bf16, rows * hidden);
        let (samples, eps, hc_eps, n) = (rows, EPS, EPS, N);
        let op = HyperHead {
            tokens,
            streams,
            rows: chosen,
            mix,
            base,
            scale,
            norm,
            out,
            samples,
            n,
            hidden,
            eps,
            hc_eps,
        };
        case.op(Op::HyperHead(op));
    };
    let bytes = 4 * N * N * hidden + rows * (2 * N + 2) * hidden;
    Bench::new("hyper_head", format!("{rows} rows"), rows, node).moves(bytes, 2 * rows * (N + 1) * N * hidden)
}
