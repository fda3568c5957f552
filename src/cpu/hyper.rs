//! `hyper`: manifold-constrained hyper-connections (model.md 2.2).

use super::ExecError;
use super::context::Context;
use super::math::{exp, mix_streams, rms_norm, round_bf16, sigmoid};
use super::products::{Inputs, Strides, dot, matmul};
use super::rows::{Rows, for_chunks, with_scratch};
use super::simd::Simd;
use crate::ops::{Dtype, HyperHead, HyperPost, HyperPre};

/// What turns the streams of a token into mixing logits.
struct Mixer<'a> {
    streams: Rows<'a>,
    bf16: bool,
    /// `[mixes, n * hidden]`.
    mix: &'a [f32],
    n: usize,
    hidden: usize,
    eps: f32,
    hc_eps: f32,
    simd: Simd,
}

impl Mixer<'_> {
    /// `logits = (mix . z) / sqrt(mean(z^2) + eps)` for the streams `z` of token `t`.
    fn logits(&self, t: usize, logits: &mut [f32]) {
        let width = self.n * self.hidden;
        let z = self.streams.load(self.simd, t * width..(t + 1) * width);
        matmul(self.simd, self.mix, Inputs::dense(&z, width), logits, Strides { w: 1, x: 1 });
        let factor = 1.0 / (dot(self.simd, &z, &z) / width as f32 + self.eps).sqrt();
        logits.iter_mut().for_each(|m| *m *= factor);
    }

    /// `sum_j pre_j streams[t, j]`, rounded to the type of the streams, then normed.
    fn input(&self, t: usize, pre: &[f32], norm: &[f32], out: &mut [f32]) {
        let width = self.n * self.hidden;
        let z = self.streams.load(self.simd, t * width..(t + 1) * width);
        mix_streams(self.simd, &z, pre, 1, None, out);
        if self.bf16 {
            round_bf16(self.simd, out);
        }
        rms_norm(self.simd, out, Some(norm), self.eps);
    }

    /// The weights of the streams in the sublayer's input.
    fn pre(&self, logits: &[f32], scale: f32, base: &[f32], pre: &mut [f32]) {
        for ((p, m), b) in pre.iter_mut().zip(logits).zip(base) {
            *p = sigmoid(m * scale + b) + self.hc_eps;
        }
    }
}

pub(super) fn pre(op: &HyperPre, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, n, simd) = (op.tokens.rows(), op.n, context.simd);
    let (width, mixes) = (n * op.hidden, (2 + n) * n);
    let positions = context.positions(&op.tokens)?;
    let streams = context.rows("streams", &op.streams, rows * width)?;
    let mix = context.vector("mix", &op.mix, mixes * width)?;
    let base = context.vector("base", &op.base, mixes)?;
    let scale = context.vector("scale", &op.scale, 3)?;
    let norm = context.vector("norm", &op.norm, op.hidden)?;
    let out = context.rows_mut("out", &op.out, rows * op.hidden)?;
    let post = context.f32s_mut("post", &op.post, rows * n)?;
    let comb = context.f32s_mut("comb", &op.comb, rows * n * n)?;
    let bf16 = op.streams.dtype == Dtype::Bf16;
    let mixer =
        Mixer { streams, bf16, mix: &mix, n, hidden: op.hidden, eps: op.eps, hc_eps: op.hc_eps, simd };
    // Per token: pre, then post, then comb.
    let mut gates = vec![0.0; rows * mixes];
    for_chunks(&mut gates, mixes, rows * (mixes * width + 6000), |t, gates| {
        if positions[t] >= 0 {
            with_scratch(mixes, |logits| {
                mixer.logits(t, logits);
                mixer.pre(&logits[..n], scale[0], &base[..n], &mut gates[..n]);
                for j in n..2 * n {
                    gates[j] = 2.0 * sigmoid(logits[j] * scale[1] + base[j]);
                }
                for j in 2 * n..mixes {
                    gates[j] = logits[j] * scale[2] + base[j];
                }
                sinkhorn(&mut gates[2 * n..], n, op.sinkhorn_iters, op.hc_eps);
            });
        }
    });
    for (t, gates) in gates.chunks_exact(mixes).enumerate() {
        post[t * n..(t + 1) * n].copy_from_slice(&gates[n..2 * n]);
        comb[t * n * n..(t + 1) * n * n].copy_from_slice(&gates[2 * n..]);
    }
    out.fill(simd, op.hidden, 2 * rows * width, |t, out| {
        if positions[t] >= 0 {
            mixer.input(t, &gates[t * mixes..t * mixes + n], &norm, out);
        } else {
            out.fill(0.0);
        }
    });
    Ok(())
}

/// Makes the logits `c[j][k]` nearly doubly stochastic: softmax of the rows, then columns and rows divided by their sums.
fn sinkhorn(c: &mut [f32], n: usize, iters: usize, eps: f32) {
    for row in c.chunks_exact_mut(n) {
        let max = row.iter().fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
        row.iter_mut().for_each(|v| *v = exp(*v - max));
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    divide_columns(c, n, eps);
    for _ in 1..iters {
        for row in c.chunks_exact_mut(n) {
            let sum = row.iter().sum::<f32>() + eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        divide_columns(c, n, eps);
    }
}

fn divide_columns(c: &mut [f32], n: usize, eps: f32) {
    for k in 0..n {
        let sum = c[k..].iter().step_by(n).sum::<f32>() + eps;
        c[k..].iter_mut().step_by(n).for_each(|v| *v /= sum);
    }
}

pub(super) fn post(op: &HyperPost, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, n, hidden, simd) = (op.tokens.rows(), op.n, op.hidden, context.simd);
    let width = n * hidden;
    let positions = context.positions(&op.tokens)?;
    let streams = context.rows("streams", &op.streams, rows * width)?;
    let y = context.rows("y", &op.y, rows * hidden)?;
    let post = context.f32s("post", &op.post, rows * n)?;
    let comb = context.f32s("comb", &op.comb, rows * n * n)?;
    let out = context.rows_mut("out", &op.out, rows * width)?;
    out.fill(simd, width, rows * n * width, |t, out| {
        if positions[t] < 0 {
            return out.fill(0.0);
        }
        let z = streams.load(simd, t * width..(t + 1) * width);
        let y = y.load(simd, t * hidden..(t + 1) * hidden);
        for (k, out) in out.chunks_exact_mut(hidden).enumerate() {
            mix_streams(simd, &z, &comb[t * n * n + k..(t + 1) * n * n], n, Some((&y, post[t * n + k])), out);
        }
    });
    Ok(())
}

pub(super) fn head(op: &HyperHead, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, n, simd) = (op.tokens.rows(), op.n, context.simd);
    let width = n * op.hidden;
    let streams = context.rows("streams", &op.streams, rows * width)?;
    let chosen = context.ints("rows", &op.rows, op.samples)?;
    let mix = context.vector("mix", &op.mix, n * width)?;
    let base = context.vector("base", &op.base, n)?;
    let scale = context.vector("scale", &op.scale, 1)?;
    let norm = context.vector("norm", &op.norm, op.hidden)?;
    let out = context.rows_mut("out", &op.out, op.samples * op.hidden)?;
    let bf16 = op.streams.dtype == Dtype::Bf16;
    let mixer =
        Mixer { streams, bf16, mix: &mix, n, hidden: op.hidden, eps: op.eps, hc_eps: op.hc_eps, simd };
    out.fill(simd, op.hidden, op.samples * (n + 2) * width, |s, out| {
        let Some(t) = usize::try_from(chosen[s]).ok().filter(|&t| t < rows) else { return out.fill(0.0) };
        with_scratch(2 * n, |scratch| {
            let (logits, pre) = scratch.split_at_mut(n);
            mixer.logits(t, logits);
            mixer.pre(logits, scale[0], &base, pre);
            mixer.input(t, pre, &norm, out);
        });
    });
    Ok(())
}
