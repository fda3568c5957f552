//! Oracles of `experts`: gate/up and down.

use super::ExecError;
use super::io::{Io, rounded};
use super::math::{dot, swiglu};
use crate::ops::{ExpertsDown, ExpertsUp};

/// An id within the experts.
fn expert(id: i32, experts: usize) -> Option<usize> {
    usize::try_from(id).ok().filter(|&e| e < experts)
}

/// Gate and up sums are rounded to the type of `x` before the product, as the operation says.
pub(super) fn up(op: &ExpertsUp, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let rows = op.tokens.rows();
    let x = io.real("x", &op.x, rows * op.hidden)?;
    let ids = io.ints("ids", &op.ids, rows * op.k)?;
    let scale = io.real("weights", &op.weights, rows * op.k)?;
    let weight = io.weight("weight", &op.weight, op.experts * 2 * op.width * op.hidden)?;
    let mut h = io.sink("h", &op.h, rows * op.k * op.width)?;
    for (slot, &id) in ids.iter().enumerate() {
        let t = slot / op.k;
        let x = &x[t * op.hidden..(t + 1) * op.hidden];
        for n in 0..op.width {
            let value = expert(id, op.experts).map_or(0.0, |e| {
                let sum = |row: usize| {
                    let start = (e * 2 * op.width + row) * op.hidden;
                    rounded(op.x.dtype, dot(x, &weight[start..start + op.hidden]))
                };
                scale[slot] * swiglu(sum(n), sum(op.width + n), op.limit)
            });
            h.set(slot * op.width + n, value);
        }
    }
    Ok(())
}

pub(super) fn down(op: &ExpertsDown, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let rows = op.tokens.rows();
    let h = io.real("h", &op.h, rows * op.k * op.width)?;
    let ids = io.ints("ids", &op.ids, rows * op.k)?;
    let weight = io.weight("weight", &op.weight, op.experts * op.hidden * op.width)?;
    let shared = io.real("shared", &op.shared, rows * op.hidden)?;
    let mut y = io.sink("y", &op.y, rows * op.hidden)?;
    for t in 0..rows {
        for n in 0..op.hidden {
            let mut sum = 0.0;
            for slot in t * op.k..(t + 1) * op.k {
                if let Some(e) = expert(ids[slot], op.experts) {
                    let start = (e * op.hidden + n) * op.width;
                    sum += dot(&h[slot * op.width..(slot + 1) * op.width], &weight[start..start + op.width]);
                }
            }
            y.set(t * op.hidden + n, sum + shared[t * op.hidden + n]);
        }
    }
    Ok(())
}
