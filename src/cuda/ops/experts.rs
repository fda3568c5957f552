//! Launches of `experts`: gate/up, and down with the sum. Which kernels run follows from the weights' format, the dimensions
//! and the device, never from the tokens.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{ExpertsDownParams, ExpertsUpParams, Weight};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch, MatrixFormat};
use crate::ops::{Dtype, ExpertsDown, ExpertsUp};

const MAX_EXPERTS: usize = 1024;
/// So that a block's pairs fit 16 bits many times over.
const MAX_CHOSEN: usize = 16;
/// Output columns of a unit of `experts_up` and of a block of `experts_down`, and the pairs of an item.
const UP_COLUMNS: usize = 16;
const DOWN_COLUMNS: usize = 16;
const ITEM_PAIRS: usize = 8;
/// Tokens that one block serves at most.
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

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for ExpertsUpParams {}
// SAFETY: generated from the kernel's header; gaps are explicit.
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

/// The kernels of `csrc/experts_fp4.cu`: whole rows of e2m1 in a ring of stages, one block a multiprocessor.
mod fp4 {
    use super::{DOWN_PAIR, ITEM, ITEM_PAIRS, MatrixFormat, ROUTES, UP_PAIR, Weight, items};

    /// Output columns of a unit of `experts_up_fp4`, output rows of a block of `experts_down_fp4`, threads.
    pub(super) const UP_COLUMNS: usize = 8;
    pub(super) const DOWN_ROWS: usize = 32;
    pub(super) const THREADS: u32 = 640;
    const MAX_STAGES: usize = 4;
    const PARTIAL: usize = 2 * 16 * 128 * 4;
    const BARRIERS: usize = 8 * 8;

    /// Whether rows of `cols` elements are such that these kernels take them.
    pub(super) fn takes(weight: &Weight, cols: usize) -> bool {
        let fp4 = [MatrixFormat::Nvfp4.code(), MatrixFormat::Mxfp4.code()].contains(&weight.format);
        fp4 && [1024, 2048, 4096].contains(&cols)
    }

    /// Bytes of a stage of so many rows: their codes and scales, and what keeps rows in banks of their own.
    fn stage(rows: usize, cols: usize) -> usize {
        rows * ((cols / 2 + cols / 16).next_multiple_of(128) + 32)
    }

    /// How a block's shared memory is shared out.
    pub(super) struct Layout {
        /// Tokens that a block serves at most.
        pub(super) tokens: usize,
        pub(super) stages: usize,
        pub(super) ring: usize,
        /// Bytes of everything, for `rows` tokens.
        pub(super) shared: usize,
    }

    fn layout(rows: usize, limit: usize, stage: usize, rest: impl Fn(usize) -> usize) -> Option<Layout> {
        // By what the most tokens need, so that the choice is the same for any number.
        [256, 64].into_iter().find_map(|tokens| {
            let stages = (limit.saturating_sub(rest(tokens)) / stage).min(MAX_STAGES);
            let ring = stages * stage;
            (stages >= 2).then(|| Layout { tokens, stages, ring, shared: rest(rows.min(tokens)) + ring })
        })
    }

    /// `None`: a block has too little shared memory.
    pub(super) fn up(rows: usize, limit: usize, experts: usize, k: usize, hidden: usize) -> Option<Layout> {
        let tables = ROUTES + BARRIERS + 20 * ITEM_PAIRS * 2;
        layout(rows, limit, stage(16, hidden), |tokens| {
            tables + PARTIAL + ITEM * items(tokens * k, experts) + UP_PAIR * tokens * k
        })
    }

    /// `None`: a block has too little shared memory.
    pub(super) fn down(rows: usize, limit: usize, experts: usize, k: usize, width: usize) -> Option<Layout> {
        layout(rows, limit, stage(DOWN_ROWS, width), |tokens| {
            let sums = (tokens * (DOWN_ROWS + 1) * 4).next_multiple_of(16);
            let pairs = ITEM * items(tokens * k, experts) + DOWN_PAIR * tokens * k;
            ROUTES + BARRIERS + 2 * PARTIAL + sums + pairs
        })
    }
}

pub(super) fn up(op: &ExpertsUp, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let weight = b.matrix("weight", &op.weight, op.experts, 2 * op.width, op.hidden)?;
    let fast = (fp4::takes(&weight, op.hidden) && op.width.is_multiple_of(fp4::UP_COLUMNS))
        .then(|| fp4::up(rows, b.all.block_shared, op.experts, op.k, op.hidden))
        .flatten();
    let tokens = fast.as_ref().map_or(UP_TOKENS, |fast| fast.tokens);
    let pairs = rows.min(tokens) * op.k;
    let items = items(pairs, op.experts);
    let params = ExpertsUpParams {
        x: b.value("x", &op.x, Dtype::Bf16, rows * op.hidden)?,
        ids: b.value("ids", &op.ids, Dtype::I32, rows * op.k)?,
        weights: b.value("weights", &op.weights, Dtype::F32, rows * op.k)?,
        weight,
        h: b.value_mut("h", &op.h, Dtype::Bf16, rows * op.k * op.width)?,
        rows: b.dim("rows", rows)?,
        experts: b.dim("experts", op.experts)?,
        k: b.dim("experts of a token", op.k)?,
        hidden: b.dim("hidden size", op.hidden)?,
        width: b.dim("expert width", op.width)?,
        limit: op.limit,
        items: b.dim("items", items)?,
        tokens: b.dim("tokens of a block", tokens)?,
        stages: b.dim("stages", fast.as_ref().map_or(0, |fast| fast.stages))?,
        ring: b.dim("bytes of the ring", fast.as_ref().map_or(0, |fast| fast.ring))?,
    };
    // At least one block, which zeroes what no expert writes.
    let blocks = |resident: usize, columns: usize| {
        [
            (resident * b.all.multiprocessors).min(items * op.width.div_ceil(columns)).max(1),
            rows.div_ceil(tokens),
            1,
        ]
    };
    if let Some(fast) = fast {
        let grid = blocks(1, fp4::UP_COLUMNS);
        return Ok(Launch::new(Kernel::ExpertsUpFp4, grid, fp4::THREADS, fast.shared, &params));
    }
    let shared = UP_TABLES + UP_RING + UP_SUMS + ITEM * items + UP_PAIR * pairs;
    Ok(Launch::new(Kernel::ExpertsUp, blocks(RESIDENT, UP_COLUMNS), 256, shared, &params))
}

pub(super) fn down(op: &ExpertsDown, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let weight = b.matrix("weight", &op.weight, op.experts, op.hidden, op.width)?;
    let fast = (fp4::takes(&weight, op.width) && op.hidden.is_multiple_of(fp4::DOWN_ROWS))
        .then(|| fp4::down(rows, b.all.block_shared, op.experts, op.k, op.width))
        .flatten();
    let most = fast.as_ref().map_or(DOWN_TOKENS, |fast| fast.tokens);
    let tokens = rows.min(most);
    let items = items(tokens * op.k, op.experts);
    let params = ExpertsDownParams {
        h: b.value("h", &op.h, Dtype::Bf16, rows * op.k * op.width)?,
        ids: b.value("ids", &op.ids, Dtype::I32, rows * op.k)?,
        weight,
        shared: b.value("shared", &op.shared, Dtype::Bf16, rows * op.hidden)?,
        y: b.value_mut("y", &op.y, Dtype::Bf16, rows * op.hidden)?,
        rows: b.dim("rows", rows)?,
        experts: b.dim("experts", op.experts)?,
        k: b.dim("experts of a token", op.k)?,
        hidden: b.dim("hidden size", op.hidden)?,
        width: b.dim("expert width", op.width)?,
        items: b.dim("items", items)?,
        tokens: b.dim("tokens of a block", most)?,
        stages: b.dim("stages", fast.as_ref().map_or(0, |fast| fast.stages))?,
        ring: b.dim("bytes of the ring", fast.as_ref().map_or(0, |fast| fast.ring))?,
        pad: 0,
    };
    let groups = rows.div_ceil(most);
    if let Some(fast) = fast {
        let grid = [op.hidden / fp4::DOWN_ROWS, groups, 1];
        return Ok(Launch::new(Kernel::ExpertsDownFp4, grid, fp4::THREADS, fast.shared, &params));
    }
    let grid = [op.hidden.div_ceil(DOWN_COLUMNS), groups, 1];
    let sums = WARPS * tokens * DOWN_COLUMNS * 4;
    let shared = ROUTES + DOWN_RING + sums + ITEM * items + DOWN_PAIR * tokens * op.k;
    Ok(Launch::new(Kernel::ExpertsDown, grid, 256, shared, &params))
}
