//! `hyper` against the oracle, and the laws of its mixing matrix.

use flashlane::ops::{HyperHead, HyperPost, HyperPre, Op, SINKHORN_DEFAULT};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, EPS, Off, Stored, Value, config, eps_of, norm_off};

const RMS_EPS: f32 = 1e-6;
const HC_EPS: f32 = 1e-6;
/// More columns than a thread block on a GPU keeps.
const WIDE: usize = 4168;

/// The weights of a mixing: `rows` logits over `n hidden` inputs.
#[derive(Clone, Debug)]
pub(crate) struct Mixing {
    n: usize,
    hidden: usize,
    mix: Vec<f32>,
    base: Vec<f32>,
    scale: Vec<f32>,
    norm: Vec<f32>,
}

impl Mixing {
    pub(crate) fn drawn(draw: &mut Draw, n: usize, hidden: usize, rows: usize, scales: usize) -> Self {
        let width = n * hidden;
        Self {
            n,
            hidden,
            mix: draw.normals(rows * width, (1.0 / width as f32).sqrt()),
            base: draw.normals(rows, 1.0),
            scale: draw.normals(scales, 1.0),
            norm: draw.normals(hidden, 1.0),
        }
    }

    /// The logit before scale and base, and its bound: an f32 dot product of m terms is off by m eps sum |f z|, the root
    /// by m eps / 2, the product by a few roundings.
    fn logit(&self, row: usize, z: &[f32]) -> (f64, f64) {
        let m = z.len();
        let pairs =
            || self.mix[row * m..(row + 1) * m].iter().zip(z).map(|(f, z)| f64::from(*f) * f64::from(*z));
        let mean: f64 = z.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / m as f64;
        let root = (mean + f64::from(RMS_EPS)).sqrt();
        let (value, magnitude): (f64, f64) =
            (pairs().sum::<f64>() / root, pairs().map(f64::abs).sum::<f64>() / root);
        let m = m as f64;
        (value, EPS * (m * magnitude + (m / 2.0 + 6.0) * value.abs()))
    }

    /// The argument of a sigmoid or softmax, and its bound.
    fn argument(&self, row: usize, scale: usize, z: &[f32]) -> (f64, f64) {
        let ((m, off), s, b) = (self.logit(row, z), f64::from(self.scale[scale]), f64::from(self.base[row]));
        (m * s + b, off * s.abs() + 2.0 * EPS * ((m * s).abs() + b.abs()))
    }

    /// The output row: a sigmoid has a slope of a quarter at most and six roundings of its own; the weighted sum is rounded
    /// to the activation type, then normed.
    fn out(&self, z: &[f32], dtype: Dtype) -> Off {
        let pre: Vec<(f64, f64)> = (0..self.n)
            .map(|j| self.argument(j, 0, z))
            .map(|(a, off)| (1.0 / (1.0 + (-a).exp()) + f64::from(HC_EPS), off / 4.0 + 6.0 * EPS))
            .collect();
        let mut x = Off::exact(vec![0.0; self.hidden]);
        for i in 0..self.hidden {
            let terms = || pre.iter().enumerate().map(|(j, p)| (p, f64::from(z[j * self.hidden + i])));
            x.values[i] = terms().map(|(p, v)| p.0 * v).sum();
            let sum = terms().map(|(p, v)| (p.1 + self.n as f64 * EPS * p.0) * v.abs()).sum::<f64>();
            x.bound[i] = sum + eps_of(dtype) * (x.values[i].abs() + sum);
        }
        norm_off(&x, &self.norm, RMS_EPS)
    }
}

pub(crate) struct Pre {
    pub(crate) case: Case,
    out: Value,
    post: Value,
    comb: Value,
}

pub(crate) fn pre(m: &Mixing, positions: &[i32], streams: &[f32], dtype: Dtype) -> Pre {
    let (n, hidden, rows) = (m.n, m.hidden, positions.len());
    let mut case = Case::new();
    let tokens = case.tokens(1, positions);
    let streams = case.real("streams", dtype, streams);
    for t in (0..rows).filter(|&t| positions[t] < 0) {
        case.unread_elements(&streams, t * n * hidden..(t + 1) * n * hidden);
    }
    let mix = case.weight("mix", (2 + n) * n, n * hidden, Stored::F32(m.mix.clone()));
    let base = case.vector("base", &m.base);
    let scale = case.vector("scale", &m.scale);
    let norm = case.vector("norm", &m.norm);
    let out = case.out("out", dtype, rows * hidden);
    let post = case.out("post", Dtype::F32, rows * n);
    let comb = case.out("comb", Dtype::F32, rows * n * n);
    case.op(Op::HyperPre(HyperPre {
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
        sinkhorn_iters: SINKHORN_DEFAULT,
        eps: RMS_EPS,
        hc_eps: HC_EPS,
    }));
    Pre { case, out, post, comb }
}

pub(crate) fn post(
    positions: &[i32],
    n: usize,
    [streams, y, post, comb]: [&[f32]; 4],
    dtype: Dtype,
) -> (Case, Value) {
    let (mut case, hidden) = (Case::new(), y.len() / positions.len());
    let tokens = case.tokens(1, positions);
    let streams = case.real("streams", dtype, streams);
    let y = case.real("y", dtype, y);
    let post = case.real("post", Dtype::F32, post);
    let comb = case.real("comb", Dtype::F32, comb);
    let out = case.out("out", dtype, streams.len);
    case.op(Op::HyperPost(HyperPost { tokens, streams, y, post, comb, out, n, hidden }));
    (case, out)
}

pub(crate) fn head(m: &Mixing, rows: &[i32], streams: &[f32], dtype: Dtype) -> (Case, Value) {
    let (mut case, width) = (Case::new(), m.n * m.hidden);
    let count = streams.len() / width;
    let tokens = case.tokens(1, &vec![0; count]);
    let streams = case.real("streams", dtype, streams);
    for t in (0..count).filter(|&t| !rows.contains(&i32::try_from(t).unwrap())) {
        case.unread_elements(&streams, t * width..(t + 1) * width);
    }
    let chosen = case.ints("rows", rows);
    let mix = case.weight("mix", m.n, width, Stored::F32(m.mix.clone()));
    let base = case.vector("base", &m.base);
    let scale = case.vector("scale", &m.scale);
    let norm = case.vector("norm", &m.norm);
    let out = case.out("out", dtype, rows.len() * m.hidden);
    case.op(Op::HyperHead(HyperHead {
        tokens,
        streams,
        rows: chosen,
        mix,
        base,
        scale,
        norm,
        out,
        samples: rows.len(),
        n: m.n,
        hidden: m.hidden,
        eps: RMS_EPS,
        hc_eps: HC_EPS,
    }));
    (case, out)
}

#[test]
fn without_mixing_the_streams_are_averaged() {
    // mix and base 0: pre is 1/2, post 1, comb uniform. Streams (1, 3) and (5, 7) sum to (3, 5); their rms is sqrt(17).
    let m = Mixing {
        n: 2,
        hidden: 2,
        mix: vec![0.0; 32],
        base: vec![0.0; 8],
        scale: vec![1.0; 3],
        norm: vec![1.0; 2],
    };
    let built = pre(&m, &[4], &[1.0, 3.0, 5.0, 7.0], Dtype::F32);
    for found in built.case.run().all {
        let close = |value: &Value, want: &[f64]| {
            let got = found.real(value);
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5), "{}: {got:?}", found.executor);
        };
        close(&built.out, &[3.0 / 17f64.sqrt(), 5.0 / 17f64.sqrt()]);
        close(&built.post, &[1.0, 1.0]);
        close(&built.comb, &[0.5; 4]);
    }
}

#[test]
fn the_mixing_goes_from_first_index_to_second() {
    // Stream 0 goes to stream 1 only: comb[0][1] = 1.
    let (case, out) = post(&[0], 2, [&[10.0, 20.0], &[1.0], &[0.5, 2.0], &[0.0, 1.0, 0.0, 0.0]], Dtype::F32);
    for found in case.run().all {
        assert_eq!(found.real(&out), [0.5, 12.0], "{}", found.executor);
    }
}

proptest! {
    #![proptest_config(config(24))]

    /// `post`: twice a sigmoid. `comb`: a softmax turns an argument's error d into a relative one of 2 d; normalising is
    /// non-expansive in ratios and adds n + 2 roundings each time.
    #[test]
    fn pre_is_the_oracles(
        seed: u64, n in 1usize..5, hidden in prop_oneof![12 => 1usize..60, 1 => Just(WIDE)], rows in 1usize..4, bf16: bool,
    ) {
        let mut draw = Draw::new(seed);
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let m = Mixing::drawn(&mut draw, n, hidden, (2 + n) * n, 3);
        let streams = draw.exact(rows * n * hidden, 2.0);
        let mut positions: Vec<i32> = (0..i32::try_from(rows).unwrap()).collect();
        if rows > 1 {
            positions[rows - 1] = -1;
        }
        let built = pre(&m, &positions, &streams, dtype);
        let runs = built.case.run();
        let (mut out, mut post, mut comb) = (vec![], vec![], vec![]);
        let wants = runs.oracle().real(&built.comb);
        for (t, z) in streams.chunks(n * hidden).enumerate() {
            if positions[t] < 0 {
                out.extend(vec![0.0; hidden]);
                post.extend(vec![0.0; n]);
                comb.extend(vec![0.0; n * n]);
                continue;
            }
            out.extend(m.out(z, dtype).bound);
            post.extend((n..2 * n).map(|j| m.argument(j, 1, z).1 / 2.0 + 12.0 * EPS));
            let off = (2 * n..(2 + n) * n).map(|j| m.argument(j, 2, z).1).fold(0.0, f64::max);
            let relative = 4.0 * off + (4 * SINKHORN_DEFAULT * (n + 2)) as f64 * EPS + 16.0 * EPS;
            comb.extend(wants[t * n * n..(t + 1) * n * n].iter().map(|c| c * relative));
        }
        // Rounding to bf16 before the norm can move a short row by percents: nothing to compare then.
        prop_assume!(out.iter().fold(0.0, |a: f64, b| a.max(*b)) < 0.05);
        runs.agree_within(&built.out, &out);
        runs.agree_within(&built.post, &post);
        runs.agree_within(&built.comb, &comb);
    }

    /// After the last normalisation every column sums to one, and rows do nearly.
    #[test]
    fn comb_is_doubly_stochastic(seed: u64, n in 2usize..5) {
        let mut draw = Draw::new(seed);
        let m = Mixing::drawn(&mut draw, n, 16, (2 + n) * n, 3);
        let streams = draw.exact(n * 16, 1.0);
        let built = pre(&m, &[0], &streams, Dtype::F32);
        for found in built.case.run().all {
            let comb = found.real(&built.comb);
            for k in 0..n {
                let column: f64 = (0..n).map(|j| comb[j * n + k]).sum();
                let row: f64 = comb[k * n..(k + 1) * n].iter().sum();
                prop_assert!((column - 1.0).abs() < 1e-5 && (row - 1.0).abs() < 0.05, "{} {}", column, row);
            }
        }
    }

    /// n + 1 products summed: n + 2 roundings of each at most.
    #[test]
    fn post_is_the_oracles(seed: u64, n in 1usize..5, hidden in 1usize..60, rows in 1usize..4, bf16: bool) {
        let mut draw = Draw::new(seed);
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let (x, y) = (draw.exact(rows * n * hidden, 1.0), draw.exact(rows * hidden, 1.0));
        let (p, c) = (draw.normals(rows * n, 1.0), draw.normals(rows * n * n, 0.5));
        let mut positions = vec![3; rows];
        if rows > 1 {
            positions[0] = -1;
        }
        let (case, out) = post(&positions, n, [&x, &y, &p, &c], dtype);
        let product = |a: f32, b: f32| (f64::from(a) * f64::from(b)).abs();
        let bound: Vec<f64> = (0..rows * n * hidden).map(|at| {
            let (t, k, i) = (at / (n * hidden), at / hidden % n, at % hidden);
            let mixed: f64 = (0..n).map(|j| product(c[(t * n + j) * n + k], x[(t * n + j) * hidden + i])).sum();
            (n + 2) as f64 * EPS * (mixed + product(p[t * n + k], y[t * hidden + i]))
        }).collect();
        case.run().agree_within(&out, &bound);
    }

    #[test]
    fn head_is_the_oracles(seed: u64, n in 1usize..5, hidden in 1usize..60, samples in 1usize..5, bf16: bool) {
        let mut draw = Draw::new(seed);
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let (m, rows) = (Mixing::drawn(&mut draw, n, hidden, n, 1), 4);
        let streams = draw.exact(rows * n * hidden, 1.0);
        let mut chosen: Vec<i32> = (0..samples).map(|_| i32::try_from(draw.below(rows + 2)).unwrap() - 1).collect();
        chosen[0] = chosen[0].clamp(0, 3);
        let (case, out) = head(&m, &chosen, &streams, dtype);
        let bound: Vec<f64> = chosen.iter().flat_map(|&r| match usize::try_from(r) {
            Ok(t) if t < rows => m.out(&streams[t * n * hidden..(t + 1) * n * hidden], dtype).bound,
            _ => vec![0.0; hidden],
        }).collect();
        prop_assume!(bound.iter().fold(0.0, |a: f64, b| a.max(*b)) < 0.05);
        case.run().agree_within(&out, &bound);
    }
}
