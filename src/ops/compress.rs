//! `compress`: tokens pooled into one compressed key/value row per 4 or 128 of them (model.md 2.5).

use super::{Access, BufferId, Mode, Tokens, Value};
use crate::format::kv_row::KvFormat;

/// Slots of a C4 state: 8 by position in each of two halves, chosen by the parity of the 256-token block, so that a
/// prefill block reads the half before its own and a replayed step reads what it read before.
pub const C4_RING: usize = 16;

/// The ring slot of a token's C4 state.
#[must_use]
pub const fn c4_state_slot(position: usize) -> usize {
    (position / super::BLOCK_TOKENS % 2) * 8 + position % 8
}

/// The slot of the online C128 state after a token.
#[must_use]
pub const fn c128_state_slot(position: usize) -> usize {
    position % 2
}

/// The per-request state of a compressor, f32.
///
/// Ratio 4: `[C4_RING][kv, gate][2 width]`, each token's projections with `ape` added to the gate, at
/// [`c4_state_slot`]. Ratio 128: `[2][max, sum, acc][width]`, the running softmax per channel after a token, at
/// [`c128_state_slot`]; a token at a multiple of 128 starts anew and reads nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLayout {
    pub ratio: usize,
    /// Channels of a row: 512, or 128 for index keys.
    pub width: usize,
}

impl StateLayout {
    /// f32 elements of one request's state.
    #[must_use]
    pub const fn len(&self) -> usize {
        if self.ratio == 4 { C4_RING * 2 * 2 * self.width } else { 2 * 3 * self.width }
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Columns of the projection `[kv | gate]` of a token.
    #[must_use]
    pub const fn projection(&self) -> usize {
        if self.ratio == 4 { 4 * self.width } else { 2 * self.width }
    }
}

/// What [`Compress`] and [`IndexStore`](super::IndexStore) pool rows from, and the pool that they go to.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooling {
    pub tokens: Tokens,
    /// f32 `[T, projection]`: `[kv (c width) | gate (c width)]`, c = 2 for ratio 4 (A half, then B half), else 1.
    pub kvg: Value,
    /// f32 weight `[ratio, c width]`.
    pub ape: Value,
    /// Weight `[width]`.
    pub norm: Value,
    /// f32 weight `[max_positions, 32, 2]`.
    pub rope: Value,
    /// i32 `[R]`: the state slot of each request; -1 or out of range: the request is skipped.
    pub state_slot: Value,
    /// i64 `[T]`: page * page_rows + row for a token that completes a row, else -1.
    pub row_slot: Value,
    /// f32 `[slots][layout.len()]`.
    pub state: BufferId,
    pub state_slots: usize,
    pub layout: StateLayout,
    pub pool: BufferId,
    pub pages: usize,
    pub max_positions: usize,
    pub eps: f32,
}

impl Pooling {
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

/// Updates the state with every token in order and, for each token that completes a row, pools, norms (`norm`), rotates
/// at the row's first token and stores the row at `row_slot[t]` in the pool's format (rounding as in `rope_store`).
///
/// Ratio 4: a row pools the A halves of tokens `4(i-1)..4i` and the B halves of `4i..4i+4` (eight candidates per channel;
/// for row 0 the first four weigh nothing). Ratio 128: all 128 tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Compress {
    pub pooling: Pooling,
    /// 64 for ratio 4, 2 for ratio 128.
    pub page_rows: usize,
    pub format: KvFormat,
    pub trained: bool,
}
