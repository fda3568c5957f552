//! `index_store`: the indexer's compressed key rows.

use super::{Access, BufferId, Mode, StateLayout, Tokens, Value};
use crate::format::index_row::IndexFormat;

/// As `compress` with ratio 4 and width 128; then the row is rotated by the Hadamard matrix and stored in the pool's
/// index format, which decides its rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexStore {
    pub tokens: Tokens,
    /// f32 `[T, 512]`: `[kv (256) | gate (256)]`.
    pub kvg: Value,
    /// f32 weight `[4, 256]`.
    pub ape: Value,
    /// Weight `[128]`.
    pub norm: Value,
    /// f32 weight `[max_positions, 32, 2]`.
    pub rope: Value,
    /// i32 `[R]`.
    pub state_slot: Value,
    /// i64 `[T]`.
    pub row_slot: Value,
    /// f32 `[slots][layout.len()]`.
    pub state: BufferId,
    pub state_slots: usize,
    pub layout: StateLayout,
    pub pool: BufferId,
    pub pages: usize,
    pub format: IndexFormat,
    pub max_positions: usize,
    pub eps: f32,
}

impl IndexStore {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.tokens.position.read(),
            self.kvg.read(),
            self.ape.read(),
            self.norm.read(),
            self.rope.read(),
            self.state_slot.read(),
            self.row_slot.read(),
            Access::settled(self.state),
            Access::tail(self.state, Mode::Write),
            Access::tail(self.pool, Mode::Write),
        ]
    }
}
