//! `attention`: one query row against its window and its compressed rows.

use super::{Access, Paged, Tokens, Value};
use crate::format::kv_row::KvFormat;

/// The compressed rows that a query sees beside its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compressed {
    None,
    /// Row indices from `topk`, i32 `[T, k]`; negative or invisible indices are skipped. Ratio 4.
    Selected {
        rows: Paged,
        selected: Value,
        k: usize,
    },
    /// Every row `i < (position[t] + 1) / 128`.
    All {
        rows: Paged,
    },
}

/// Rows of query `t`: window tokens `max(0, t - 127)..=t` in order, then the compressed rows in ascending order; key and
/// value are the same 512-vector. `a = scale q_h . row`, softmax with the head's sink in the denominator, sum, then the
/// inverse rotation of the last 64 dims at the query's position. With no row at all the output is zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub tokens: Tokens,
    /// Activation `[T, heads, 512]`.
    pub q: Value,
    pub window: Paged,
    pub compressed: Compressed,
    /// f32 weight `[heads]`.
    pub sink: Value,
    /// f32 weight `[max_positions, 32, 2]`.
    pub rope: Value,
    /// Activation `[T, heads, 512]`.
    pub out: Value,
    pub heads: usize,
    pub format: KvFormat,
    pub max_positions: usize,
    /// `1 / sqrt(512)`.
    pub scale: f32,
}

impl Attention {
    pub(super) fn regions(&self) -> Vec<Access> {
        let mut all = vec![self.tokens.position.read(), self.q.read(), self.sink.read(), self.rope.read()];
        all.extend(self.window.reads());
        match &self.compressed {
            Compressed::None => {}
            Compressed::Selected { rows, selected, .. } => {
                all.extend(rows.reads());
                all.push(selected.read());
            }
            Compressed::All { rows } => all.extend(rows.reads()),
        }
        all.push(self.out.write());
        all
    }
}
