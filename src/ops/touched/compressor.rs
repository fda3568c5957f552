//! The states and rows that `compress` and `index_store` touch.

use std::ops::Range;

use super::{RowBytes, Rows, Touch, UnknownContents};
use crate::ops::{BufferId, C4_RING, Mode, StateLayout, Tokens, Value, c4_state_slot, c128_state_slot};

/// What `compress` and `index_store` have in common.
pub(super) struct Compressor<'a> {
    pub(super) tokens: Tokens,
    pub(super) layout: StateLayout,
    pub(super) state: BufferId,
    pub(super) state_slot: Value,
    pub(super) state_slots: usize,
    pub(super) row_slot: Value,
    pub(super) pool: BufferId,
    pub(super) rows: usize,
    pub(super) row: &'a dyn Fn(usize) -> RowBytes,
    pub(super) rope: Value,
    pub(super) max_positions: usize,
}

impl Touch<'_> {
    pub(super) fn compressor(&mut self, c: &Compressor<'_>) -> Result<(), UnknownContents> {
        let (positions, slots) = (self.i32s(&c.tokens.position)?, self.i64s(&c.row_slot)?);
        let states = self.i32s(&c.state_slot)?;
        self.store(c.pool, &slots, c.rows, c.row);
        let ratio = i32::try_from(c.layout.ratio).unwrap_or(i32::MAX);
        let complete = positions.iter().copied().filter(|p| *p >= 0 && (p + 1) % ratio == 0);
        self.lookup(&c.rope, c.max_positions, complete.map(|p| p + 1 - ratio));
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for (positions, slot) in positions.chunks(c.tokens.per_request.max(1)).zip(states) {
            let Some(slot) = usize::try_from(slot).ok().filter(|s| *s < c.state_slots) else { continue };
            let live = live(positions);
            read.extend(state_reads(&c.layout, &live).map(|s| state_bytes(&c.layout, slot, s)));
            written.extend(live.map(|p| state_bytes(&c.layout, slot, state_slot(&c.layout, p))));
        }
        self.add(c.state, Mode::Read, Rows::Settled, read);
        self.add(c.state, Mode::Write, Rows::Tail, written);
        Ok(())
    }
}

/// Positions of a request's tokens in this step.
pub(super) fn live(positions: &[i32]) -> Range<usize> {
    let count = positions.iter().take_while(|p| **p >= 0).count();
    let first = positions.first().and_then(|&p| usize::try_from(p).ok()).unwrap_or(0);
    first..first + count
}

fn state_slot(layout: &StateLayout, position: usize) -> usize {
    if layout.ratio == 4 { c4_state_slot(position) } else { c128_state_slot(position) }
}

/// Slots of older tokens that the step's tokens need.
fn state_reads(layout: &StateLayout, live: &Range<usize>) -> impl Iterator<Item = usize> {
    let layout = *layout;
    let older = if live.is_empty() {
        0..0
    } else if layout.ratio == 4 {
        // The first token that completes a row pools the seven before it.
        let complete = live.start / 4 * 4 + 3;
        if complete < live.end { complete.saturating_sub(7)..live.start } else { 0..0 }
    } else if live.start.is_multiple_of(128) {
        0..0
    } else {
        live.start - 1..live.start
    };
    older.map(move |p| state_slot(&layout, p))
}

fn state_bytes(layout: &StateLayout, request: usize, slot: usize) -> Range<usize> {
    let slots = if layout.ratio == 4 { C4_RING } else { 2 };
    let bytes = layout.len() * 4 / slots;
    let start = (request * slots + slot) * bytes;
    start..start + bytes
}
