//! Comparison with the oracle: exact, or within a bound that the test derives from the operation.

use flashlane::ops::{BufferId, Dtype, Value};

use super::run::{Found, Runs};

/// Unit roundoff of f32: half the distance from 1 to the next number.
pub(crate) const EPS: f64 = 1.0 / (1u64 << 24) as f64;

/// The distance between neighbouring bf16 numbers at `value`.
pub(crate) fn bf16_step(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { 2f64.powi(value.abs().log2().floor() as i32 - 7) }
}

/// Relative distance of neighbours in an activation type: what one rounding to it can differ by between two executors
/// whose unrounded results are a hair apart.
pub(crate) fn eps_of(dtype: Dtype) -> f64 {
    if dtype == Dtype::Bf16 { 1.0 / 128.0 } else { 2.0 * EPS }
}

impl Runs {
    pub(crate) fn oracle(&self) -> &Found {
        &self.all[0]
    }

    /// Every executor left the oracle's very bytes in `buffer`.
    pub(crate) fn agree_exactly(&self, buffer: BufferId) {
        let want = self.oracle().bytes(buffer);
        for found in &self.all[1..] {
            let at = want.iter().zip(found.bytes(buffer)).position(|(a, b)| a != b);
            assert!(at.is_none(), "{}: byte {at:?} differs from the oracle's", found.executor);
        }
    }

    /// Every executor is within `bound[i]` of the oracle's element `i`, one rounding to the value's type on top. NaN and
    /// infinities must be equal. The bound must mean something: it may not reach a tenth of the largest element.
    pub(crate) fn agree_within(&self, value: &Value, bound: &[f64]) {
        let want = self.oracle().real(value);
        assert_eq!(want.len(), bound.len());
        let finite = |all: &[f64]| all.iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
        let (largest, loosest) = (finite(&want), finite(bound));
        assert!(largest > 0.0, "the oracle's output is all zero: this case tests nothing");
        assert!(loosest < 0.1 * largest, "bound {loosest} is vacuous beside {largest}");
        for found in &self.all {
            for (i, (&w, &f)) in want.iter().zip(&found.real(value)).enumerate() {
                let allowed = bound[i] + eps_of(value.dtype) * (w.abs() + bound[i]);
                let same = w == f || (w.is_nan() && f.is_nan()) || (w - f).abs() <= allowed;
                assert!(same, "{}: element {i} is {f}, the oracle's {w}, allowed {allowed}", found.executor);
            }
        }
    }
}
