//! Error bounds carried through the steps that several operations share: a norm, a rotation, the Hadamard matrix.
//!
//! Bounds are of first order in eps, with constants rounded up; they hold for any order of summation.

use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::{KvFormat, NOPE, TILE};
use flashlane::ops::ROPE_DIM;

use super::judge::{EPS, bf16_step};

/// Exact values, and how far an f32 executor may be from each of them.
#[derive(Clone, Debug)]
pub(crate) struct Off {
    pub(crate) values: Vec<f64>,
    pub(crate) bound: Vec<f64>,
}

impl Off {
    /// Numbers that are exact in memory.
    pub(crate) fn exact(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        Self { bound: vec![0.0; values.len()], values }
    }

    fn combine(&self, f: impl Fn(usize) -> (f64, f64)) -> Self {
        let (values, bound) = (0..self.values.len()).map(f).unzip();
        Self { values, bound }
    }
}

/// `weight x / sqrt(mean(x^2) + eps)`: each element keeps its own error, scaled, and shares that of the root, which is the
/// errors' root mean square at most; summing n squares adds n eps / 2 to the root, the rest four roundings.
pub(crate) fn norm_off(x: &Off, weight: &[f32], eps: f32) -> Off {
    let n = x.values.len() as f64;
    let mean = |all: &[f64]| all.iter().map(|v| v * v).sum::<f64>() / n;
    let rms = (mean(&x.values) + f64::from(eps)).sqrt();
    let shared = mean(&x.bound).sqrt() / rms + (n / 2.0 + 4.0) * EPS;
    x.combine(|i| {
        let gain = f64::from(weight[i]).abs() / rms;
        (f64::from(weight[i]) * x.values[i] / rms, gain * (x.bound[i] + x.values[i].abs() * shared))
    })
}

/// A rotation mixes the errors of a pair, and adds three roundings of each product. `angles` is a row of the table.
pub(crate) fn rope_off(x: &Off, angles: &[f32]) -> Off {
    let start = x.values.len() - ROPE_DIM;
    x.combine(|i| {
        if i < start {
            return (x.values[i], x.bound[i]);
        }
        let (a, b) = (i - (i - start) % 2, i - (i - start) % 2 + 1);
        let (cos, sin) = (f64::from(angles[a - start]), f64::from(angles[b - start]));
        let (va, vb) = (x.values[a], x.values[b]);
        let value = if i == a { va * cos - vb * sin } else { va * sin + vb * cos };
        (value, x.bound[a] + x.bound[b] + 3.0 * EPS * (va.abs() + vb.abs()))
    })
}

/// The Hadamard matrix spreads every error over all elements; seven additions and one product each.
pub(crate) fn hadamard_off(x: &Off) -> Off {
    let root = (x.values.len() as f64).sqrt();
    let spread: f64 = x.values.iter().zip(&x.bound).map(|(v, b)| b + 8.0 * EPS * v.abs()).sum::<f64>() / root;
    x.combine(|i| {
        let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        (x.values.iter().enumerate().map(|(j, v)| sign(j) * v).sum::<f64>() / root, spread)
    })
}

/// The power of two that scales a block with this largest magnitude into a format with this limit.
fn scale(block: &[f64], limit: f64, floor: f64) -> f64 {
    let largest = block.iter().fold(floor, |m, v| m.max(v.abs()));
    2f64.powf((largest / limit).log2().ceil())
}

/// The distance of neighbouring e4m3 values around `value`, in a block scaled by a power of two.
fn e4m3_step(block: &[f64], value: f64) -> f64 {
    let scale = scale(block, 448.0, 1e-4);
    let exponent = if value == 0.0 { -6.0 } else { (value.abs() / scale).log2().floor().max(-6.0) };
    scale * 2f64.powf(exponent - 3.0)
}

/// The largest distance of neighbouring e2m1 values in a block: that of 4 and 6.
fn e2m1_step(block: &[f64]) -> f64 {
    2.0 * scale(block, 6.0, 6.0 * 2f64.powi(-126))
}

/// The distance of neighbours around element `i`, of `value`, in a key/value row whose unrounded numbers are `row`.
pub(crate) fn kv_step(format: KvFormat, trained: bool, row: &[f64], i: usize, value: f64) -> f64 {
    let coarse = trained || format == KvFormat::Fp8;
    match format {
        _ if coarse && i < NOPE => e4m3_step(&row[i / TILE * TILE..][..TILE], value),
        KvFormat::F32 if !coarse => f32_step(value),
        _ => bf16_step(value),
    }
}

/// As [`kv_step`], in an index row.
pub(crate) fn index_step(format: IndexFormat, row: &[f64], i: usize, value: f64) -> f64 {
    match format {
        IndexFormat::F32 => f32_step(value),
        IndexFormat::Bf16 => bf16_step(value),
        IndexFormat::Fp8 => e4m3_step(row, value),
        IndexFormat::Fp4 => e2m1_step(&row[i / 32 * 32..][..32]),
    }
}

fn f32_step(value: f64) -> f64 {
    2.0 * EPS * value.abs()
}
