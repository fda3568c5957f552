//! `query`: per-head norm and rotation of the query.

use super::{Access, Tokens, Value};

/// Each head of 512: `q / sqrt(mean(q^2) + eps)` (no weight), then RoPE on its last 64 dims at the row's position; f32,
/// rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    pub tokens: Tokens,
    /// Activation `[T, heads, 512]`.
    pub q: Value,
    /// f32 weight `[max_positions, 32, 2]`: cosine and sine.
    pub rope: Value,
    /// Activation `[T, heads, 512]`.
    pub out: Value,
    pub heads: usize,
    pub max_positions: usize,
    pub eps: f32,
}

impl Query {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![self.tokens.position.read(), self.q.read(), self.rope.read(), self.out.write()]
    }
}
