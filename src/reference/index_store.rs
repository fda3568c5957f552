//! Oracle of `index_store`: the compressor's rows, rotated by the Hadamard matrix.

use super::ExecError;
use super::compress::Compressor;
use super::io::Io;
use super::rows::{Pool, hadamard, store_index};
use crate::ops::{INDEX_DIM, IndexStore, PAGE_ROWS};

pub(super) fn run(op: &IndexStore, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let p = &op.pooling;
    io.expect_width(INDEX_DIM, p.layout.width)?;
    let compressor = Compressor::new(p, io)?;
    let row_slots = io.longs("row_slot", &p.row_slot, p.tokens.rows())?;
    let finished = compressor.run(io.state_mut(p.state, p.state_slots * p.layout.len())?);
    let page_bytes = op.format.page_bytes(PAGE_ROWS);
    let mut pool = Pool::new(io.buffer_mut(p.pool)?, p.pages, PAGE_ROWS, page_bytes);
    for (t, row) in finished {
        if let Some((page, place)) = pool.find(row_slots[t]) {
            store_index(&hadamard(&row), page, place, PAGE_ROWS, op.format);
        }
    }
    Ok(())
}
