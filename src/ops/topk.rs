//! `topk`: the rows with the best scores.

use super::{Access, Tokens, Value};

/// The `k` largest of `logits[t, 0..n]`, `n = min((position[t] + 1) / 4, width)`: exact, ties to the smaller index, NaN
/// below every number, -0 equal to +0. Written in ascending index order, then -1. With `n <= k` all rows are taken and
/// no logit is read.
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    pub tokens: Tokens,
    /// f32 `[T, width]`.
    pub logits: Value,
    pub width: usize,
    /// i32 `[T, k]`.
    pub selected: Value,
    pub k: usize,
}

impl TopK {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![self.tokens.position.read(), self.logits.read(), self.selected.write()]
    }
}
