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

/// The kernels of `csrc/experts_fp4.cu`: K in slices of 256 columns, one block a multiprocessor.
mod fp4 {
    use super::{ITEM, ITEM_PAIRS, MatrixFormat, UP_PAIR, Weight, items};

    pub(super) const THREADS: u32 = 640;
    const WARPS: usize = 16;
    const SLICE: usize = 256;
    /// Stages of the ring, and sets of partial sums.
    const SLOTS: usize = 4;
    /// Barriers, pairs of the warps' items, and sets of partial sums, in which the tables lie first.
    const FIXED: usize =
        (3 * SLOTS * 8 + 20 * ITEM_PAIRS * 2 + SLOTS * WARPS * 16 * 8 * 4).next_multiple_of(128);
    /// What an item of `experts_down` takes besides: places for its pairs, and a scale.
    const PLACES: usize = ITEM_PAIRS * 2 + 4;

    /// How a block shares out its warps and its memory.
    pub(super) struct Layout {
        /// Row tiles of 16 that its warps have at once.
        pub(super) tiles: usize,
        /// Tokens that it serves at most.
        pub(super) tokens: usize,
        /// Bytes of everything, for the tokens at hand.
        pub(super) shared: usize,
    }

    /// Row tiles of a block where rows are `cols` elements, if these kernels take such rows.
    fn tiles(format: i32, cols: usize) -> Option<usize> {
        let slices = cols / SLICE;
        let whole = cols.is_multiple_of(SLICE) && slices > 0 && WARPS.is_multiple_of(slices);
        (whole && group(format).is_some()).then(|| WARPS / slices)
    }

    /// Elements that share a scale.
    fn group(format: i32) -> Option<usize> {
        [(MatrixFormat::Nvfp4, 16), (MatrixFormat::Mxfp4, 32)]
            .into_iter()
            .find(|(of, _)| of.code() == format)
            .map(|(_, group)| group)
    }

    /// Bytes of a stage: blocks of neighbouring rows of codes, each in four runs with gaps, and their scales.
    fn stage(format: i32, blocks: usize, tiles: usize, cols: usize) -> Option<usize> {
        Some(16 * tiles * (cols / 2 + cols / group(format)?) + blocks * 4 * 32)
    }

    fn layout(tiles: usize, rows: usize, limit: usize, bytes: impl Fn(usize) -> usize) -> Option<Layout> {
        // By what the most tokens need, so that the choice is the same for any number.
        let tokens = [256, 128, 64].into_iter().find(|&tokens| bytes(tokens) <= limit)?;
        Some(Layout { tiles, tokens, shared: bytes(rows.min(tokens)) })
    }

    /// `None`: another kernel must.
    pub(super) fn up(
        weight: &Weight,
        (rows, limit): (usize, usize),
        (experts, k): (usize, usize),
        (hidden, width): (usize, usize),
    ) -> Option<Layout> {
        let tiles = tiles(weight.format, hidden).filter(|tiles| width.is_multiple_of(8 * tiles))?;
        let fixed = FIXED + SLOTS * stage(weight.format, 2, tiles, hidden)?;
        layout(tiles, rows, limit, |tokens| fixed + ITEM * items(tokens * k, experts) + UP_PAIR * tokens * k)
    }

    /// `None`: another kernel must.
    pub(super) fn down(
        weight: &Weight,
        (rows, limit): (usize, usize),
        (experts, k): (usize, usize),
        (hidden, width): (usize, usize),
    ) -> Option<Layout> {
        let tiles = tiles(weight.format, width).filter(|tiles| hidden.is_multiple_of(16 * tiles))?;
        let fixed = FIXED + SLOTS * stage(weight.format, 1, tiles, width)?;
        layout(tiles, rows, limit, |tokens| {
            fixed + 16 * tiles * tokens * 4 + (ITEM + PLACES) * items(tokens * k, experts)
        })
    }
}

pub(super) fn up(op: &ExpertsUp, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let weight = b.matrix("weight", &op.weight, op.experts, 2 * op.width, op.hidden)?;
    let room = (rows, b.all.shared_memory);
    let fast = fp4::up(&weight, room, (op.experts, op.k), (op.hidden, op.width));
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
        let grid = blocks(1, 8 * fast.tiles);
        return Ok(Launch::new(Kernel::ExpertsUpFp4, grid, fp4::THREADS, fast.shared, &params));
    }
    let shared = UP_TABLES + UP_RING + UP_SUMS + ITEM * items + UP_PAIR * pairs;
    Ok(Launch::new(Kernel::ExpertsUp, blocks(RESIDENT, UP_COLUMNS), 256, shared, &params))
}

pub(super) fn down(op: &ExpertsDown, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    check(b, op.experts, op.k)?;
    let weight = b.matrix("weight", &op.weight, op.experts, op.hidden, op.width)?;
    let room = (rows, b.all.shared_memory);
    let fast = fp4::down(&weight, room, (op.experts, op.k), (op.hidden, op.width));
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
        pad: 0,
    };
    let groups = rows.div_ceil(most);
    if let Some(fast) = fast {
        let grid = [op.hidden / (16 * fast.tiles), groups, 1];
        return Ok(Launch::new(Kernel::ExpertsDownFp4, grid, fp4::THREADS, fast.shared, &params));
    }
    let grid = [op.hidden.div_ceil(DOWN_COLUMNS), groups, 1];
    let sums = WARPS * tokens * DOWN_COLUMNS * 4;
    let shared = ROUTES + DOWN_RING + sums + ITEM * items + DOWN_PAIR * tokens * op.k;
    Ok(Launch::new(Kernel::ExpertsDown, grid, 256, shared, &params))
}

#[cfg(test)]
mod tests {
    use super::{MatrixFormat, Weight, fp4};

    /// The numbers of Flash: the kernel and what its results could depend on are the same for any number of rows, and fit.
    #[test]
    fn rows_do_not_choose_the_kernel() {
        let null = std::ptr::null();
        let format = MatrixFormat::Nvfp4.code();
        let weight = Weight { codes: null, scales: null, global: null.cast(), format, pad: 0 };
        for (limit, fits) in [(227 << 10, true), (99 << 10, false)] {
            let chosen = |rows| {
                [fp4::up, fp4::down].map(|of| {
                    of(&weight, (rows, limit), (256, 6), (4096, 2048)).map(|layout| {
                        assert!(layout.shared <= limit, "{} bytes", layout.shared);
                        (layout.tiles, layout.tokens)
                    })
                })
            };
            assert_eq!(chosen(1).map(|layout| layout.is_some()), [fits; 2], "{limit} bytes");
            assert!((2..1000).all(|rows| chosen(rows) == chosen(1)), "{limit} bytes");
        }
    }
}
