//! Oracles of `hyper`: before, after and past the last sublayer (model.md 2.2).

use super::ExecError;
use super::io::{Io, rounded};
use super::math::{dot, inverse_rms, rms_norm, sigmoid};
use crate::ops::{HyperHead, HyperPost, HyperPre};

/// The mixing logits of one token: `(fn . z) / sqrt(mean(z^2) + eps)`.
fn mixing(z: &[f64], mix: &[f64], eps: f32) -> Vec<f64> {
    let scale = inverse_rms(z, eps);
    mix.chunks(z.len()).map(|row| dot(row, z) * scale).collect()
}

/// `sum_j pre_j streams[j]`.
fn weighted(pre: &[f64], z: &[f64], hidden: usize) -> Vec<f64> {
    (0..hidden).map(|i| pre.iter().enumerate().map(|(j, p)| p * z[j * hidden + i]).sum()).collect()
}

/// Rows softmaxed, then columns and rows normalised in turn: nearly doubly stochastic. `c[j][k]`, j the source.
fn sinkhorn(logits: &[f64], n: usize, iters: usize, eps: f64) -> Vec<f64> {
    let mut c: Vec<f64> = Vec::with_capacity(n * n);
    for row in logits.chunks(n) {
        let max = row.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v));
        let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
        c.extend(row.iter().map(|v| (v - max).exp() / sum + eps));
    }
    let columns = |c: &mut [f64]| {
        for k in 0..n {
            let sum: f64 = (0..n).map(|j| c[j * n + k]).sum();
            (0..n).for_each(|j| c[j * n + k] /= sum + eps);
        }
    };
    columns(&mut c);
    for _ in 1..iters {
        for row in c.chunks_mut(n) {
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|v| *v /= sum + eps);
        }
        columns(&mut c);
    }
    c
}

pub(super) fn pre(op: &HyperPre, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let (rows, n, width) = (op.tokens.rows(), op.n, op.n * op.hidden);
    let positions = io.positions(&op.tokens)?;
    let streams = io.real("streams", &op.streams, rows * width)?;
    let mix = io.weight("mix", &op.mix, (2 + n) * n * width)?;
    let base = io.weight("base", &op.base, (2 + n) * n)?;
    let scale = io.weight("scale", &op.scale, 3)?;
    let norm = io.weight("norm", &op.norm, op.hidden)?;
    let mut out = io.sink("out", &op.out, rows * op.hidden)?;
    let mut post = io.sink("post", &op.post, rows * n)?;
    let mut comb = io.sink("comb", &op.comb, rows * n * n)?;
    let hc_eps = f64::from(op.hc_eps);
    for (t, position) in positions.iter().enumerate() {
        if position.is_none() {
            out.set_row(t, &vec![0.0; op.hidden]);
            post.set_row(t, &vec![0.0; n]);
            comb.set_row(t, &vec![0.0; n * n]);
            continue;
        }
        let z = &streams[t * width..(t + 1) * width];
        let m = mixing(z, mix, op.eps);
        let pre: Vec<f64> = (0..n).map(|j| sigmoid(m[j] * scale[0] + base[j]) + hc_eps).collect();
        let back: Vec<f64> = (n..2 * n).map(|j| 2.0 * sigmoid(m[j] * scale[1] + base[j])).collect();
        let logits: Vec<f64> = (2 * n..(2 + n) * n).map(|j| m[j] * scale[2] + base[j]).collect();
        let x: Vec<f64> =
            weighted(&pre, z, op.hidden).iter().map(|&v| rounded(op.streams.dtype, v)).collect();
        out.set_row(t, &rms_norm(&x, norm, op.eps));
        post.set_row(t, &back);
        comb.set_row(t, &sinkhorn(&logits, n, op.sinkhorn_iters, hc_eps));
    }
    Ok(())
}

pub(super) fn post(op: &HyperPost, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let (rows, n, hidden) = (op.tokens.rows(), op.n, op.hidden);
    let positions = io.positions(&op.tokens)?;
    let streams = io.real("streams", &op.streams, rows * n * hidden)?;
    let y = io.real("y", &op.y, rows * hidden)?;
    let post = io.real("post", &op.post, rows * n)?;
    let comb = io.real("comb", &op.comb, rows * n * n)?;
    let mut out = io.sink("out", &op.out, rows * n * hidden)?;
    for (t, position) in positions.iter().enumerate() {
        for k in 0..n {
            for i in 0..hidden {
                let mixed: f64 =
                    (0..n).map(|j| comb[(t * n + j) * n + k] * streams[(t * n + j) * hidden + i]).sum();
                let value = post[t * n + k] * y[t * hidden + i] + mixed;
                out.set((t * n + k) * hidden + i, if position.is_some() { value } else { 0.0 });
            }
        }
    }
    Ok(())
}

pub(super) fn head(op: &HyperHead, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let (rows, n, width) = (op.tokens.rows(), op.n, op.n * op.hidden);
    let streams = io.real("streams", &op.streams, rows * width)?;
    let chosen = io.ints("rows", &op.rows, op.samples)?;
    let mix = io.weight("mix", &op.mix, n * width)?;
    let base = io.weight("base", &op.base, n)?;
    let scale = io.weight("scale", &op.scale, 1)?;
    let norm = io.weight("norm", &op.norm, op.hidden)?;
    let mut out = io.sink("out", &op.out, op.samples * op.hidden)?;
    for (s, &row) in chosen.iter().enumerate() {
        let Some(t) = usize::try_from(row).ok().filter(|&t| t < rows) else {
            out.set_row(s, &vec![0.0; op.hidden]);
            continue;
        };
        let z = &streams[t * width..(t + 1) * width];
        let m = mixing(z, mix, op.eps);
        let pre: Vec<f64> =
            (0..n).map(|j| sigmoid(m[j] * scale[0] + base[j]) + f64::from(op.hc_eps)).collect();
        let x: Vec<f64> =
            weighted(&pre, z, op.hidden).iter().map(|&v| rounded(op.streams.dtype, v)).collect();
        out.set_row(s, &rms_norm(&x, norm, op.eps));
    }
    Ok(())
}
