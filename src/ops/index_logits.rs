//! `index_logits`: the score of every visible index row.

use super::{Access, Paged, Tokens, Value};
use crate::format::index_row::IndexFormat;

/// `logits[t, r] = sum_h scale weights[t, h] relu(q[t, h] . key_r)` for `r < (position[t] + 1) / 4`, heads in ascending
/// order; columns from there on are not written. A row on a masked page scores -inf.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexLogits {
    pub tokens: Tokens,
    /// u8 `[T, heads, code bytes]`.
    pub codes: Value,
    /// u8 `[T, heads, scale bytes]`.
    pub scales: Option<Value>,
    /// f32 `[T, heads]`.
    pub weights: Value,
    pub keys: Paged,
    /// f32 `[T, keys.max_rows()]`.
    pub logits: Value,
    pub heads: usize,
    pub format: IndexFormat,
    /// `1 / sqrt(128 heads)`.
    pub scale: f32,
}

impl IndexLogits {
    pub(super) fn regions(&self) -> Vec<Access> {
        let mut all = vec![self.tokens.position.read(), self.codes.read(), self.weights.read()];
        all.extend(self.scales.map(|s| s.read()));
        all.extend(self.keys.reads());
        all.push(self.logits.write());
        all
    }
}
