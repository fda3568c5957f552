//! `experts`: the routed experts, gate/up and down.

use super::{Access, Tokens, Value};

/// `h[t, i] = weights[t, i] * silu(min(g, limit)) * clamp(u, -limit, limit)` with `g = w1[e] x[t]`, `u = w3[e] x[t]`,
/// `e = ids[t, i]`; both sums rounded to the activation type first. An id outside `0..experts` gives zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsUp {
    pub tokens: Tokens,
    /// Activation `[T, hidden]`.
    pub x: Value,
    /// i32 `[T, k]`.
    pub ids: Value,
    /// f32 `[T, k]`.
    pub weights: Value,
    /// Weight `[experts, 2 width, hidden]`: the rows of w1, then of w3, for each expert.
    pub weight: Value,
    /// Activation `[T, k, width]`.
    pub h: Value,
    pub experts: usize,
    pub k: usize,
    pub hidden: usize,
    pub width: usize,
    /// 0 is none.
    pub limit: f32,
}

impl ExpertsUp {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![self.x.read(), self.ids.read(), self.weights.read(), self.weight.read(), self.h.write()]
    }
}

/// `y[t] = sum_i w2[ids[t, i]] h[t, i] + shared[t]`: f32, in the order of `ids` (ascending expert), the shared expert
/// last, rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsDown {
    pub tokens: Tokens,
    /// Activation `[T, k, width]`.
    pub h: Value,
    /// i32 `[T, k]`.
    pub ids: Value,
    /// Weight `[experts, hidden, width]`.
    pub weight: Value,
    /// Activation `[T, hidden]`: the shared expert's output.
    pub shared: Value,
    /// Activation `[T, hidden]`.
    pub y: Value,
    pub experts: usize,
    pub k: usize,
    pub hidden: usize,
    pub width: usize,
}

impl ExpertsDown {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![self.h.read(), self.ids.read(), self.weight.read(), self.shared.read(), self.y.write()]
    }
}
