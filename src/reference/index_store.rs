//! Oracle of `index_store`: the compressor's rows, rotated by the Hadamard matrix.

use super::ExecError;
use super::compress::Compressor;
use super::io::Io;
use super::rows::{Pool, hadamard, store_index};
use crate::ops::{INDEX_DIM, IndexStore, PAGE_ROWS, ROPE_DIM};

pub(super) fn run(op: &IndexStore, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let (rows, layout) = (op.tokens.rows(), op.layout);
    io.expect_width(INDEX_DIM, layout.width)?;
    let compressor = Compressor {
        layout,
        tokens: op.tokens,
        positions: io.positions(&op.tokens)?,
        kvg: io.real("kvg", &op.kvg, rows * layout.projection())?,
        ape: io.weight("ape", &op.ape, layout.ratio * layout.projection() / 2)?,
        norm: io.weight("norm", &op.norm, layout.width)?,
        rope: io.weight("rope", &op.rope, op.max_positions * ROPE_DIM)?,
        max_positions: op.max_positions,
        eps: op.eps,
        slots: io.ints("state_slot", &op.state_slot, op.tokens.requests)?,
        num_slots: op.state_slots,
    };
    let row_slots = io.longs("row_slot", &op.row_slot, rows)?;
    let finished = compressor.run(io.state_mut(op.state, op.state_slots * layout.len())?);
    let page_bytes = op.format.page_bytes(PAGE_ROWS);
    let mut pool = Pool::new(io.buffer_mut(op.pool)?, op.pages, PAGE_ROWS, page_bytes);
    for (t, row) in finished {
        if let Some((page, place)) = pool.find(row_slots[t]) {
            store_index(&hadamard(&row), page, place, PAGE_ROWS, op.format);
        }
    }
    Ok(())
}
