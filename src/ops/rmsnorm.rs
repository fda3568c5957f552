//! `rmsnorm`: root-mean-square norm with a gain.

use super::{Access, Value};

/// `out[r, :] = weight * x[r, :] / sqrt(mean(x[r, :]^2) + eps)` in f32, rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Activation `[rows, width]`.
    pub x: Value,
    /// Weight `[width]`.
    pub weight: Value,
    /// Activation `[rows, width]`.
    pub out: Value,
    pub rows: usize,
    pub width: usize,
    pub eps: f32,
}

impl RmsNorm {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![self.x.read(), self.weight.read(), self.out.write()]
    }
}
