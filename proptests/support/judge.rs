//! Comparison with the oracle: exact, or within a bound that the test derives from the operation.

use flashlane::ops::{BufferId, Dtype, Value};

use super::bounds::Off;
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
        self.agree(|found| found.real(value), bound, eps_of(value.dtype));
    }

    /// As [`agree_within`](Self::agree_within), for numbers that `read` finds, with `eps` for the rounding on top.
    pub(crate) fn agree(&self, read: impl Fn(&Found) -> Vec<f64>, bound: &[f64], eps: f64) {
        let want = read(self.oracle());
        assert_eq!(want.len(), bound.len());
        let finite = |all: &[f64]| all.iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
        let (largest, loosest) = (finite(&want), finite(bound));
        assert!(largest > 0.0, "the oracle's output is all zero: this case tests nothing");
        assert!(loosest < 0.1 * largest, "bound {loosest} is vacuous beside {largest}");
        for found in &self.all {
            for (i, (&w, &f)) in want.iter().zip(&read(found)).enumerate() {
                let allowed = bound[i] + eps * (w.abs() + bound[i]);
                let same = w == f || (w.is_nan() && f.is_nan()) || (w - f).abs() <= allowed;
                assert!(same, "{}: element {i} is {f}, the oracle's {w}, allowed {allowed}", found.executor);
            }
        }
    }

    /// Rows that were rounded to a storage format, `exact` being what they were before. The oracle lies half a step from
    /// the exact row. Where an exact value lies within its bound of a rounding boundary an executor may land one step
    /// away, or two if the scale of its block fell on the other side of a power of two; in coarse formats that is rare,
    /// so at most one element in fifty (and two more) may differ at all. `step(i, value)` is the distance of neighbours.
    pub(crate) fn agree_rounded(
        &self,
        read: impl Fn(&Found) -> Vec<f64>,
        exact: &Off,
        coarse: bool,
        step: impl Fn(usize, f64) -> f64,
    ) {
        let want = read(self.oracle());
        assert_eq!(want.len(), exact.bound.len());
        assert!(want.iter().any(|v| *v != 0.0), "the oracle's rows are all zero: this case tests nothing");
        for (i, (&w, &x)) in want.iter().zip(&exact.values).enumerate() {
            let half = 0.51 * step(i, w).max(step(i, x));
            assert!((w - x).abs() <= half + exact.bound[i], "oracle: element {i} is {w}, exactly {x}");
        }
        for found in &self.all {
            let got = read(found);
            let apart: Vec<usize> = (0..want.len()).filter(|&i| want[i] != got[i]).collect();
            for &i in &apart {
                let (w, f, allowed) = (want[i], got[i], exact.bound[i] + 2.0 * step(i, want[i]));
                assert!((w - f).abs() <= allowed, "{}: element {i} is {f}, the oracle's {w}", found.executor);
            }
            let few = !coarse || apart.len() <= want.len() / 50 + 2;
            assert!(few, "{}: {} of {} differ", found.executor, apart.len(), want.len());
        }
    }
}
