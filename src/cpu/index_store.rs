//! `index_store`: the indexer's compressed key rows.

use super::ExecError;
use super::compress::Compressor;
use super::context::Context;
use super::pages::slot;
use super::simd::kernel;
use crate::format::hadamard::hadamard_128;
use crate::format::index_row::IndexFormat;
use crate::ops::{INDEX_DIM, IndexStore, PAGE_ROWS};

kernel! {
    fn store_key<'a>(_lanes; format: IndexFormat, row: &'a mut [f32; INDEX_DIM], page: &'a mut [u8], place: usize) -> () {
        hadamard_128(row);
        format.encode_row(row, page, place, PAGE_ROWS);
    }
}

pub(super) fn run(op: &IndexStore, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let p = &op.pooling;
    context.expect("row", INDEX_DIM, p.layout.width)?;
    let compressor = Compressor::new(p, context)?;
    let row_slots = context.longs("row_slot", &p.row_slot, p.tokens.rows())?;
    let state = context.state_mut(p.state, p.state_slots * p.layout.len())?;
    let page_bytes = op.format.page_bytes(PAGE_ROWS);
    let pool = context.pool_mut(p.pool, p.pages * page_bytes)?;
    let simd = context.simd;
    compressor.run(state, &mut [0.0; INDEX_DIM], |t, row| {
        if let (Some((page, place)), Ok(row)) = (slot(row_slots[t], PAGE_ROWS, p.pages), row.try_into()) {
            store_key(simd, op.format, row, &mut pool[page * page_bytes..(page + 1) * page_bytes], place);
        }
    });
    Ok(())
}
