//! `rope_store`: the window key/value row of each token.

use super::{Access, BufferId, Mode, Tokens, Value};
use crate::format::kv_row::KvFormat;

/// `row = rope(norm(kv[t]), position[t])`, then stored at `slot[t]` in the pool's format. With `trained` rounding the
/// first 448 dims are rounded to FP8 with a power-of-two scale per 64 (model.md 2.4 step 3) in every format.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeStore {
    pub tokens: Tokens,
    /// Activation `[T, 512]`.
    pub kv: Value,
    /// Weight `[512]`.
    pub norm: Value,
    /// f32 weight `[max_positions, 32, 2]`.
    pub rope: Value,
    /// i64 `[T]`: page * 64 + row within the page; -1 or out of range: not stored.
    pub slot: Value,
    pub pool: BufferId,
    pub pages: usize,
    pub format: KvFormat,
    pub trained: bool,
    pub max_positions: usize,
    pub eps: f32,
}

impl RopeStore {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.tokens.position.read(),
            self.kv.read(),
            self.norm.read(),
            self.rope.read(),
            self.slot.read(),
            Access::tail(self.pool, Mode::Write),
        ]
    }
}
