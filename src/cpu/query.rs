//! `query`: per-head norm and rotation of the query.

use super::ExecError;
use super::context::Context;
use super::math::{rms_norm, rotate_last};
use crate::ops::{HEAD_DIM, Query};

pub(super) fn run(op: &Query, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (width, simd) = (op.heads * HEAD_DIM, context.simd);
    let len = op.tokens.rows() * width;
    let positions = context.positions(&op.tokens)?;
    let q = context.rows("q", &op.q, len)?;
    let rope = context.rope(&op.rope, op.max_positions)?;
    let out = context.rows_mut("out", &op.out, len)?;
    out.fill(simd, width, 4 * len, |t, row| {
        let Ok(position) = usize::try_from(positions[t]) else { return row.fill(0.0) };
        q.copy_to(simd, t * width, row);
        for head in row.chunks_exact_mut(HEAD_DIM) {
            rms_norm(simd, head, None, op.eps);
            rotate_last(simd, head, rope.row(position), false);
        }
    });
    Ok(())
}
