//! Oracle of `rmsnorm`.

use super::ExecError;
use super::io::Io;
use super::math::rms_norm;
use crate::ops::RmsNorm;

pub(super) fn run(op: &RmsNorm, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let x = io.real("x", &op.x, op.rows * op.width)?;
    let weight = io.weight("weight", &op.weight, op.width)?;
    let mut out = io.sink("out", &op.out, op.rows * op.width)?;
    for r in 0..op.rows {
        out.set_row(r, &rms_norm(&x[r * op.width..(r + 1) * op.width], weight, op.eps));
    }
    Ok(())
}
