//! Oracle of `rope_store`.

use super::ExecError;
use super::io::Io;
use super::math::{Turn, rms_norm, rope};
use super::rows::{Pool, store_kv};
use crate::ops::{HEAD_DIM, PAGE_ROWS, ROPE_DIM, RopeStore};

/// The row is f64 until it is stored; the format rounds the f32 nearest to it.
pub(super) fn run(op: &RopeStore, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let rows = op.tokens.rows();
    let positions = io.positions(&op.tokens)?;
    let kv = io.real("kv", &op.kv, rows * HEAD_DIM)?;
    let norm = io.weight("norm", &op.norm, HEAD_DIM)?;
    let table = io.weight("rope", &op.rope, op.max_positions * ROPE_DIM)?;
    let slots = io.longs("slot", &op.slot, rows)?;
    let page_bytes = op.format.page_bytes(PAGE_ROWS);
    let mut pool = Pool::new(io.buffer_mut(op.pool)?, op.pages, PAGE_ROWS, page_bytes);
    for (t, position) in positions.iter().enumerate() {
        let (Some(position), Some((page, place))) = (*position, pool.find(slots[t])) else { continue };
        let mut row = rms_norm(&kv[t * HEAD_DIM..(t + 1) * HEAD_DIM], norm, op.eps);
        rope(&mut row, table, position, op.max_positions, Turn::Forward);
        store_kv(&row, page, place, PAGE_ROWS, op.format, op.trained);
    }
    Ok(())
}
