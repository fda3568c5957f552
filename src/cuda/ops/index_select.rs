//! Launch of `index_select`, by either reader.

use super::IndexReader;
use super::index_logits::{TILE, scores};
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::IndexSelectParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, IndexSelect};

/// Blocks of a token, and the rows that one of them has room for: 99 KB of shared memory do, which every target has.
const CLUSTER: usize = 8;
const MAX_SEGMENT: usize = 4096;
const THREADS: u32 = 512;
/// `Head` and the working space of the kernel; the scores follow.
const SHARED: usize = 17_152 + 71_680;

// SAFETY: generated from the kernels' header; gaps are explicit.
unsafe impl Params for IndexSelectParams {}

pub(super) fn launch(op: &IndexSelect, b: &Bound<'_>, reader: IndexReader) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    b.at_most("rows that a token may see", op.keys.max_rows(), CLUSTER * MAX_SEGMENT)?;
    let params = IndexSelectParams {
        scores: scores(&op.scores(), b)?,
        selected: b.value_mut("selected", &op.selected, Dtype::I32, rows * op.k)?,
        k: b.dim("k", op.k)?,
        pad: 0,
    };
    let kernel = match reader {
        IndexReader::Fast if op.keys.page_rows == TILE => Kernel::IndexSelectFast,
        _ => Kernel::IndexSelectSimple,
    };
    let segment = op.keys.max_rows().div_ceil(CLUSTER).next_multiple_of(TILE);
    Ok(Launch::new(kernel, [CLUSTER * rows, 1, 1], THREADS, SHARED + 4 * segment, &params))
}
