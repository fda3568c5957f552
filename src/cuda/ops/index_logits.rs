//! Launch of `index_logits`, by either reader.

use super::{IndexReader, index_format};
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::IndexLogitsParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, IndexLogits};

const MAX_HEADS: usize = 64;
/// Rows that a block scores before it strides on.
const ROWS_PER_BLOCK: usize = 256;
/// Blocks that a multiprocessor holds.
const BLOCKS_PER_SM: usize = 2;

// SAFETY: generated from the kernels' header; pointers and 4-byte fields without gaps.
unsafe impl Params for IndexLogitsParams {}

pub(super) fn launch(op: &IndexLogits, b: &Bound<'_>, reader: IndexReader) -> Result<Launch, CudaError> {
    let (rows, columns) = (op.tokens.rows(), op.keys.max_rows());
    b.at_most("index heads", op.heads, MAX_HEADS)?;
    let scales = match &op.scales {
        Some(scales) => b.value("scales", scales, Dtype::U8, rows * op.heads * op.format.scale_bytes())?,
        None if op.format.scale_bytes() == 0 => std::ptr::null(),
        None => return Err(CudaError::Unbound { op: b.op, operand: "scales" }),
    };
    let params = IndexLogitsParams {
        position: b.positions(&op.tokens)?,
        codes: b.value("codes", &op.codes, Dtype::U8, rows * op.heads * op.format.code_bytes())?,
        scales,
        weights: b.value("weights", &op.weights, Dtype::F32, rows * op.heads)?,
        keys: b.paged("keys", &op.tokens, &op.keys, op.format.page_bytes(op.keys.page_rows))?,
        logits: b.value_mut("logits", &op.logits, Dtype::F32, rows * columns)?,
        per_request: b.dim("tokens of a request", op.tokens.per_request)?,
        heads: b.dim("index heads", op.heads)?,
        format: index_format(b, op.format)?,
        scale: op.scale,
    };
    // Enough blocks to fill the device twice over; fewer where the table is short.
    let wanted = (2 * BLOCKS_PER_SM * b.all.multiprocessors).div_ceil(rows.max(1));
    let blocks = columns.div_ceil(ROWS_PER_BLOCK).min(wanted.max(1));
    let kernel = match reader {
        IndexReader::Simple => Kernel::IndexLogitsSimple,
        IndexReader::Fast => Kernel::IndexLogitsFast,
    };
    Ok(Launch::new(kernel, [blocks, rows, 1], 256, 0, &params))
}
