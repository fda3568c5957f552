//! `rope_store`: the window key/value row of each token.

use super::ExecError;
use super::context::Context;
use super::math::{rms_norm, rotate_last};
use super::pages::{KvPool, slot};
use crate::ops::{HEAD_DIM, PAGE_ROWS, RopeStore};

pub(super) fn run(op: &RopeStore, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, simd) = (op.tokens.rows(), context.simd);
    let positions = context.positions(&op.tokens)?;
    let kv = context.rows("kv", &op.kv, rows * HEAD_DIM)?;
    let norm = context.vector("norm", &op.norm, HEAD_DIM)?;
    let rope = context.rope(&op.rope, op.max_positions)?;
    let slots = context.longs("slot", &op.slot, rows)?;
    let mut pool = KvPool::new(context, op.pool, op.pages, PAGE_ROWS, op.format, op.trained)?;
    let mut row = [0.0; HEAD_DIM];
    for (t, (&position, &at)) in positions.iter().zip(slots).enumerate() {
        let (Ok(position), Some(at)) = (usize::try_from(position), slot(at, PAGE_ROWS, op.pages)) else {
            continue;
        };
        kv.copy_to(simd, t * HEAD_DIM, &mut row);
        rms_norm(simd, &mut row, Some(&norm), op.eps);
        rotate_last(simd, &mut row, rope.row(position), false);
        pool.store(simd, at, &mut row);
    }
    Ok(())
}
