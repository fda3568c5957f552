//! The states and rows that `compress` and `index_store` touch.

use std::ops::Range;

use super::{RowBytes, Rows, Touch, UnknownContents};
use crate::ops::{C4_RING, Mode, Pooling, StateLayout, c4_state_slot, c128_state_slot};

impl Touch<'_> {
    pub(super) fn pooling(
        &mut self,
        p: &Pooling,
        page_rows: usize,
        row: &dyn Fn(usize) -> RowBytes,
    ) -> Result<(), UnknownContents> {
        let (positions, slots) = (self.i32s(&p.tokens.position)?, self.i64s(&p.row_slot)?);
        let states = self.i32s(&p.state_slot)?;
        self.store(p.pool, &slots, p.pages * page_rows, row);
        let ratio = i32::try_from(p.layout.ratio).unwrap_or(i32::MAX);
        let complete = positions.iter().copied().filter(|at| *at >= 0 && (at + 1) % ratio == 0);
        self.lookup(&p.rope, p.max_positions, complete.map(|at| at + 1 - ratio));
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for (positions, slot) in positions.chunks(p.tokens.per_request.max(1)).zip(states) {
            let Some(slot) = usize::try_from(slot).ok().filter(|s| *s < p.state_slots) else { continue };
            let live = live(positions);
            read.extend(state_reads(&p.layout, &live).map(|s| state_bytes(&p.layout, slot, s)));
            written.extend(live.map(|at| state_bytes(&p.layout, slot, state_slot(&p.layout, at))));
        }
        self.add(p.state, Mode::Read, Rows::Settled, read);
        self.add(p.state, Mode::Write, Rows::Tail, written);
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
