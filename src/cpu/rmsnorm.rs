//! `rmsnorm`: root-mean-square norm with a gain.

use super::ExecError;
use super::context::Context;
use super::math::rms_norm;
use crate::ops::RmsNorm;

pub(super) fn run(op: &RmsNorm, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (len, simd) = (op.rows * op.width, context.simd);
    let x = context.rows("x", &op.x, len)?;
    let gain = context.vector("weight", &op.weight, op.width)?;
    let out = context.rows_mut("out", &op.out, len)?;
    out.fill(simd, op.width, 2 * len, |r, row| {
        x.copy_to(simd, r * op.width, row);
        rms_norm(simd, row, Some(&gain), op.eps);
    });
    Ok(())
}
