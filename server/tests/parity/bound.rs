//! How far two executors may be apart that are both right.
//!
//! Their f32 sums differ by a hair, in an order of summation. Where the sum is rounded for storage, the hair can move the
//! result by one step; a few roundings later the results of two executors are as good as rounded independently. The difference
//! of two independent roundings to nearest has a standard deviation of step / sqrt(6). A step is between 2^-p and 2^(1-p) of the
//! value, and 0.72 of the latter in root mean square, p being the bits of the mantissa: 8 in bf16, 4 in e4m3, 2 in e2m1. So:
//!
//! * a bf16 activation adds `BF16 = 0.72 * 2^-7 / sqrt(6)` to the relative difference, in quadrature;
//! * a value already `d` apart that is rounded to a coarser step `s` lands a whole step away with probability `|d| / s`: it adds
//!   the variance `s |d|`, and `|d|` is 0.8 standard deviations in the mean. That is how key rows in e4m3 and index vectors
//!   in e2m1 differ.
//!
//! A sublayer stores six activations on the longest way from its input to its output, a layer has two sublayers, attention reads
//! key rows once. Norms and mixing keep relative differences; adding to the residual streams only dilutes them. So after `l` layers
//! two rows differ by `sigma(l)` of their root mean square. The norm of a whole row's difference may be [`ROW_SPREAD`] of that; a single
//! element may be off by [`SPREAD`]: six standard deviations, which a normal number exceeds once in 5e8. So may the scores of index
//! keys: heads' weights have both signs, and what their parts leave of a score is smaller than the parts.

/// Standard deviations that a single number may be off by.
pub(crate) const SPREAD: f64 = 6.0;

/// Standard deviations that the norm of a row's difference may be: a mean over elements, which varies little.
pub(crate) const ROW_SPREAD: f64 = 2.0;

/// Activations that a layer stores, one after another.
const STORED: f64 = 12.0;

/// Root mean square of a step over its value.
fn step(mantissa_bits: i32) -> f64 {
    0.72 * 2f64.powi(1 - mantissa_bits)
}

/// Relative difference of two independent roundings to bf16.
fn bf16() -> f64 {
    step(8) / 6f64.sqrt()
}

/// Variance that a rounding to a coarser step adds to values so far apart.
fn flips(mantissa_bits: i32, apart: f64) -> f64 {
    step(mantissa_bits) * 0.8 * apart
}

/// Relative difference of activations after so many layers.
pub(crate) fn sigma(layers: usize) -> f64 {
    (layers as f64 * (STORED * bf16().powi(2) + flips(4, bf16()))).sqrt()
}

/// The same of the scores of index keys, in a layer after so many: query and key, as far apart as activations are by then, are
/// rounded to e2m1.
pub(crate) fn index_sigma(layers: usize) -> f64 {
    (sigma(layers + 1).powi(2) + 2.0 * flips(2, sigma(layers + 1))).sqrt()
}

/// The largest slope of sqrt(softplus(x)).
pub(crate) const SCORE_SLOPE: f64 = 0.32;

pub(crate) fn rms(values: &[f32]) -> f64 {
    let sum: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
    (sum / values.len().max(1) as f64).sqrt()
}
