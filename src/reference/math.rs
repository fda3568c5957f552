//! Scalar and vector functions that several oracles share, written as the formulas read.

use crate::ops::ROPE_DIM;

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `1 / sqrt(mean(x^2) + eps)`.
pub(super) fn inverse_rms(x: &[f64], eps: f32) -> f64 {
    1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt()
}

/// `weight * x / sqrt(mean(x^2) + eps)`.
pub(super) fn rms_norm(x: &[f64], weight: &[f64], eps: f32) -> Vec<f64> {
    let scale = inverse_rms(x, eps);
    x.iter().zip(weight).map(|(v, w)| w * v * scale).collect()
}

/// `silu(min(gate, limit)) * clamp(up, -limit, limit)`; a limit of 0 is none. A NaN stays one.
pub(super) fn swiglu(gate: f64, up: f64, limit: f32) -> f64 {
    let limit = if limit > 0.0 { f64::from(limit) } else { f64::INFINITY };
    let gate = if gate > limit { limit } else { gate };
    silu(gate) * up.clamp(-limit, limit)
}

/// Which way to turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Forward,
    Inverse,
}

/// Rotates the pairs `(2i, 2i + 1)` of the last 64 dims of `x` by the angles of `position`, whose cosines and sines are
/// in `table [max_positions, 32, 2]`. A position beyond the table takes its last row.
pub(super) fn rope(x: &mut [f64], table: &[f64], position: usize, max_positions: usize, turn: Turn) {
    if max_positions == 0 {
        return;
    }
    let row = position.min(max_positions - 1);
    let start = x.len() - ROPE_DIM;
    for i in 0..ROPE_DIM / 2 {
        let cos = table[(row * ROPE_DIM / 2 + i) * 2];
        let sin = table[(row * ROPE_DIM / 2 + i) * 2 + 1];
        let sin = if turn == Turn::Inverse { -sin } else { sin };
        let (a, b) = (x[start + 2 * i], x[start + 2 * i + 1]);
        x[start + 2 * i] = a * cos - b * sin;
        x[start + 2 * i + 1] = a * sin + b * cos;
    }
}

/// Indices of the `k` largest of `scores`, ascending: ties to the smaller index, NaN below every number, -0 equal to +0.
pub(super) fn top_k(scores: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (scores[a], scores[b]);
        match (x.is_nan(), y.is_nan()) {
            (false, false) => y.partial_cmp(&x).unwrap_or(std::cmp::Ordering::Equal),
            (x_nan, y_nan) => x_nan.cmp(&y_nan),
        }
        .then(a.cmp(&b))
    });
    order.truncate(k);
    order.sort_unstable();
    order
}
