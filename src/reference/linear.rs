//! Oracle of `linear`.

use super::ExecError;
use super::io::{Io, rounded};
use super::math::{dot, swiglu};
use crate::ops::{Epilogue, Linear};

/// Sums in f64; with SwiGLU both sums are rounded to the type of `x` before the product, as the operation says.
pub(super) fn run(op: &Linear, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let depth = op.cols_in / op.groups;
    let x = io.real("x", &op.x, op.rows * op.cols_in)?;
    let weight = io.weight("weight", &op.weight, op.weight_rows * depth)?;
    let mut out = io.sink("out", &op.out, op.rows * op.cols_out())?;
    let per_group = op.weight_rows / op.groups;
    for r in 0..op.rows {
        let sum = |n: usize| {
            let start = r * op.cols_in + n / per_group * depth;
            dot(&x[start..start + depth], &weight[n * depth..(n + 1) * depth])
        };
        for n in 0..op.cols_out() {
            let value = match op.epilogue {
                Epilogue::None => sum(n),
                Epilogue::SwiGlu { limit } => {
                    let gate = rounded(op.x.dtype, sum(n));
                    let up = rounded(op.x.dtype, sum(op.cols_out() + n));
                    swiglu(gate, up, limit)
                }
            };
            out.set(r * op.cols_out() + n, value);
        }
    }
    Ok(())
}
