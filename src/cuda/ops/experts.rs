//! Launches of `experts`: gate/up, and down with the sum.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{ExpertsDownParams, ExpertsUpParams};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, ExpertsDown, ExpertsUp};

const MAX_EXPERTS: usize = 1024;
/// So that a block's pairs fit 16 bits many times over.
const MAX_CHOSEN: usize = 16;
/// Output columns of a unit of `experts_up` and of a block of `experts_down`, and the pairs of an item.
const UP_COLUMNS: usize = 16;
const DOWN_COLUMNS: usize = 16;
const ITEM_PAIRS: usize = 8;
/// Tokens that one block serves.
const UP_TOKENS: usize = 256;
const DOWN_TOKENS: usize = 64;
/// Blocks that a multiprocessor holds at once.
const RESIDENT: usize = 2;
const WARPS: usize = 8;
/// Bytes of dynamic shared memory: the tables of experts, the rings of weights, two sets of partial sums, and what an item
/// and a pair take.
const ROUTES: usize = 4240;
const UP_TABLES: usize = ROUTES + WARPS * ITEM_PAIRS * 2;
const STAGE: usize = 16 * 128 + 16 * 16;
const UP_RING: usize = WARPS * 4 * STAGE;
const DOWN_RING: usize = WARPS * 3 * STAGE;
const UP_SUMS: usize = 2 * WARPS * 2 * 8 * 17 * 4;
const ITEM: usize = 8;
const UP_PAIR: usize = 2;
const DOWN_PAIR: usize = 4;

// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for ExpertsUpParams {}
// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for ExpertsDownParams {}

/// Items that `pairs` pairs can give: one an expert, and one more for every 8 pairs beyond an expert's first.
fn items(pairs: usize, experts: usize) -> usize {
    let active = pairs.min(experts);
    active + (pairs - active) / ITEM_PAIRS
}

fn check(b: &Bound<'_>, experts: usize, k: usize) -> Result<(), CudaError> {
    b.at_most("experts", experts, MAX_EXPERTS)?;
    b.at_most("experts of a token", k, MAX_CHOSEN)
}

pub(super) fn up(op: &ExpertsUp, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let pairs = rows.min(UP_TOKENS) * op.k;
    let items = items(pairs, op.experts);
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
        items: b.dim("items", items)?,
        pad: 0,
    };
    // At least one block, which zeroes what no expert writes.
    let blocks = (RESIDENT * b.all.multiprocessors).min(items * op.width.div_ceil(UP_COLUMNS)).max(1);
    let shared = UP_TABLES + UP_RING + UP_SUMS + ITEM * items + UP_PAIR * pairs;
    Ok(Launch::new(Kernel::ExpertsUp, [blocks, rows.div_ceil(UP_TOKENS), 1], 256, shared, &params))
}

pub(super) fn down(op: &ExpertsDown, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let tokens = rows.min(DOWN_TOKENS);
    let items = items(tokens * op.k, op.experts);
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
        items: b.dim("items", items)?,
    };
    let grid = [op.hidden.div_ceil(DOWN_COLUMNS), rows.div_ceil(DOWN_TOKENS), 1];
    let sums = WARPS * tokens * DOWN_COLUMNS * 4;
    let shared = ROUTES + DOWN_RING + sums + ITEM * items + DOWN_PAIR * tokens * op.k;
    Ok(Launch::new(Kernel::ExpertsDown, grid, 256, shared, &params))
}
