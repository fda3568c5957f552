//! `index_query`: the indexer's query heads.

use super::{Access, Tokens, Value};
use crate::format::index_row::IndexFormat;

/// Each head of 128: RoPE on its last 64 dims at the row's position, Hadamard, then encoded as a row of the index format
/// (fp8: one power-of-two scale a head; fp4: one per 32).
#[derive(Clone, Debug, PartialEq)]
pub struct IndexQuery {
    pub tokens: Tokens,
    /// Activation `[T, heads, 128]`.
    pub q: Value,
    /// f32 weight `[max_positions, 32, 2]`.
    pub rope: Value,
    /// `[T, heads, code bytes]` as u8: f32, bf16, e4m3 or packed e2m1 codes.
    pub codes: Value,
    /// `[T, heads, scale bytes]` as u8; absent in the f32 and bf16 formats.
    pub scales: Option<Value>,
    pub heads: usize,
    pub format: IndexFormat,
    pub max_positions: usize,
}

impl IndexQuery {
    pub(super) fn regions(&self) -> Vec<Access> {
        let mut all = vec![self.tokens.position.read(), self.q.read(), self.rope.read(), self.codes.write()];
        all.extend(self.scales.map(|s| s.write()));
        all
    }
}
