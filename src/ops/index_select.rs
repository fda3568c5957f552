//! `index_select`: the rows with the best index scores.

use super::{Access, Dtype, IndexLogits, Paged, Tokens, Value};
use crate::format::index_row::IndexFormat;

/// What `topk` would choose from the logits of [`IndexLogits`], which are written nowhere: the `k` best of the visible rows
/// in ascending index order, then -1. With no more than `k` visible rows all are taken and no key is read.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexSelect {
    pub tokens: Tokens,
    /// u8 `[T, heads, code bytes]`.
    pub codes: Value,
    /// u8 `[T, heads, scale bytes]`.
    pub scales: Option<Value>,
    /// f32 `[T, heads]`.
    pub weights: Value,
    pub keys: Paged,
    /// i32 `[T, k]`.
    pub selected: Value,
    pub k: usize,
    pub heads: usize,
    pub format: IndexFormat,
    /// `1 / sqrt(128 heads)`.
    pub scale: f32,
}

impl IndexSelect {
    pub(super) fn regions(&self) -> Vec<Access> {
        let mut all = vec![self.tokens.position.read(), self.codes.read(), self.weights.read()];
        all.extend(self.scales.map(|s| s.read()));
        all.extend(self.keys.reads());
        all.push(self.selected.write());
        all
    }

    /// The operation whose scores these are. Nobody may write its logits: they have the output's buffer as a placeholder.
    #[must_use]
    pub(crate) fn scores(&self) -> IndexLogits {
        let len = self.tokens.rows() * self.keys.max_rows();
        IndexLogits {
            tokens: self.tokens,
            codes: self.codes,
            scales: self.scales,
            weights: self.weights,
            keys: self.keys,
            logits: Value { buffer: self.selected.buffer, dtype: Dtype::F32, len },
            heads: self.heads,
            format: self.format,
            scale: self.scale,
        }
    }
}
