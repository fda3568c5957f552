//! Launches of `experts`: gate/up, and down with the sum.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{ExpertsDownParams, ExpertsUpParams};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, ExpertsDown, ExpertsUp};

const MAX_EXPERTS: usize = 1024;
/// Output columns of a block of `experts_up`.
const UP_COLUMNS: usize = 32;
/// Rows up to which a loaded weight serves 8 tokens at a time; above, an expert may well have more.
const NARROW_ROWS: usize = 64;
/// Output columns and tokens of a block of `experts_down`.
const DOWN_COLUMNS: usize = 16;
const DOWN_TOKENS: usize = 64;
/// So that the items of `experts_down` fit their table: each has at least one of 64 k pairs.
const MAX_CHOSEN: usize = 16;
/// Partial sums of `experts_down`, bytes a column: 8 warps of 17 floats.
const DOWN_SHARED: usize = 8 * 17 * 4;

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for ExpertsUpParams {}
// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for ExpertsDownParams {}

fn check(b: &Bound<'_>, experts: usize, k: usize) -> Result<(), CudaError> {
    b.at_most("experts", experts, MAX_EXPERTS)?;
    b.at_most("experts of a token", k, MAX_CHOSEN)
}

pub(super) fn up(op: &ExpertsUp, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let params = ExpertsUpParams {
        x: b.value("x", &op.x, Dtype::Bf16, rows * op.hidden)?,
        ids: b.value("ids", &op.ids, Dtype::I32, rows * op.k)?,
        weights: b.value("weights", &op.weights, Dtype::F32, rows * op.k)?,
        weight: b.matrix("weight", &op.weight, op.experts, 2 * op.width, op.hidden)?,
        h: b.value_mut("h", &op.h, Dtype::Bf16, rows * op.k * op.width)?,
        rows: b.dim("rows", rows)?,
        experts: b.dim("experts", op.experts)?,
        k: b.dim("experts of a token", op.k)?,
        hidden: b.dim("hidden size", op.hidden)?,
        width: b.dim("expert width", op.width)?,
        limit: op.limit,
    };
    // One block column a possible active expert; at least one, which zeroes what no expert writes.
    let active = op.experts.min(rows * op.k);
    let kernel = if rows <= NARROW_ROWS { Kernel::ExpertsUp8 } else { Kernel::ExpertsUp32 };
    Ok(Launch::new(kernel, [op.width.div_ceil(UP_COLUMNS), active, 1], 256, 0, &params))
}

pub(super) fn down(op: &ExpertsDown, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let params = ExpertsDownParams {
        h: b.value("h", &op.h, Dtype::Bf16, rows * op.k * op.width)?,
        ids: b.value("ids", &op.ids, Dtype::I32, rows * op.k)?,
        weight: b.matrix("weight", &op.weight, op.experts, op.hidden, op.width)?,
        shared: b.value("shared", &op.shared, Dtype::Bf16, rows * op.hidden)?,
        y: b.value_mut("y", &op.y, Dtype::Bf16, rows * op.hidden)?,
        rows: b.dim("rows", rows)?,
        experts: b.dim("experts", op.experts)?,
        k: b.dim("experts of a token", op.k)?,
        hidden: b.dim("hidden size", op.hidden)?,
        width: b.dim("expert width", op.width)?,
        pad: 0,
    };
    let grid = [rows.div_ceil(DOWN_TOKENS), op.hidden.div_ceil(DOWN_COLUMNS), 1];
    let (kernel, columns) =
        if rows <= NARROW_ROWS { (Kernel::ExpertsDown8, 8) } else { (Kernel::ExpertsDown32, 32) };
    Ok(Launch::new(kernel, grid, 256, DOWN_SHARED * columns, &params))
}
