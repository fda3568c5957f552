//! Launch of `index_logits`, by either reader.

use super::{IndexReader, index_format};
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{IndexLogitsParams, IndexScores};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, IndexLogits};

const MAX_HEADS: usize = 64;
/// `fast`: threads of a block, `Shared` of the kernel, and blocks that a multiprocessor of sm_90 holds.
const THREADS: u32 = 256;
const SHARED: usize = 82_896;
const BLOCKS_PER_SM: usize = 2;
/// Rows of a tile of `fast`, and of the pages that it reads.
pub(super) const TILE: usize = 64;
/// `simple`: threads of a block, a row each before it strides on, and enough blocks for a multiprocessor.
const SIMPLE_THREADS: u32 = 256;
const SIMPLE_BLOCKS_PER_SM: usize = 4;

// SAFETY: generated from the kernels' header; gaps are explicit.
unsafe impl Params for IndexLogitsParams {}

/// The queries and keys of either operation that scores them.
pub(super) fn scores(op: &IndexLogits, b: &Bound<'_>) -> Result<IndexScores, CudaError> {
    let rows = op.tokens.rows();
    b.at_most("index heads", op.heads, MAX_HEADS)?;
    let scales = match &op.scales {
        Some(scales) => b.value("scales", scales, Dtype::U8, rows * op.heads * op.format.scale_bytes())?,
        None if op.format.scale_bytes() == 0 => std::ptr::null(),
        None => return Err(CudaError::Unbound { op: b.op, operand: "scales" }),
    };
    Ok(IndexScores {
        position: b.positions(&op.tokens)?,
        codes: b.value("codes", &op.codes, Dtype::U8, rows * op.heads * op.format.code_bytes())?,
        scales,
        weights: b.value("weights", &op.weights, Dtype::F32, rows * op.heads)?,
        keys: b.paged("keys", &op.tokens, &op.keys, op.format.page_bytes(op.keys.page_rows))?,
        per_request: b.dim("tokens of a request", op.tokens.per_request)?,
        heads: b.dim("index heads", op.heads)?,
        format: index_format(b, op.format)?,
        scale: op.scale,
    })
}

pub(super) fn launch(op: &IndexLogits, b: &Bound<'_>, reader: IndexReader) -> Result<Launch, CudaError> {
    let (rows, columns) = (op.tokens.rows(), op.keys.max_rows());
    let params = IndexLogitsParams {
        scores: scores(op, b)?,
        logits: b.value_mut("logits", &op.logits, Dtype::F32, rows * columns)?,
        tokens: b.dim("tokens", rows)?,
        pad: 0,
    };
    // At most as many as the device holds at a time: they cut the tiles of all tokens evenly among them.
    let tiles = rows * columns.div_ceil(TILE);
    b.dim("tiles of keys", tiles)?;
    match reader {
        IndexReader::Fast if op.keys.page_rows == TILE => {
            let blocks = tiles.min(BLOCKS_PER_SM * b.all.multiprocessors);
            Ok(Launch::new(Kernel::IndexLogitsFast, [blocks, 1, 1], THREADS, SHARED, &params))
        }
        _ => {
            let wanted = (SIMPLE_BLOCKS_PER_SM * b.all.multiprocessors).div_ceil(rows.max(1));
            let blocks = columns.div_ceil(SIMPLE_THREADS as usize).min(wanted);
            Ok(Launch::new(Kernel::IndexLogitsSimple, [blocks, rows, 1], SIMPLE_THREADS, 0, &params))
        }
    }
}
