//! Launch of `index_query`.

use super::index_format;
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::IndexQueryParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, INDEX_DIM, IndexQuery};

/// Heads of a block, a warp each.
const HEADS_PER_BLOCK: usize = 8;

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for IndexQueryParams {}

pub(super) fn launch(op: &IndexQuery, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let heads = op.tokens.rows() * op.heads;
    let scales = match &op.scales {
        Some(scales) => b.value_mut("scales", scales, Dtype::U8, heads * op.format.scale_bytes())?,
        None if op.format.scale_bytes() == 0 => std::ptr::null_mut(),
        None => return Err(CudaError::Unbound { op: b.op, operand: "scales" }),
    };
    let params = IndexQueryParams {
        position: b.positions(&op.tokens)?,
        q: b.value("q", &op.q, Dtype::Bf16, heads * INDEX_DIM)?,
        rope: b.rope(&op.rope, op.max_positions)?,
        codes: b.value_mut("codes", &op.codes, Dtype::U8, heads * op.format.code_bytes())?,
        scales,
        rows: b.dim("query heads", heads)?,
        heads: b.dim("heads", op.heads)?,
        format: index_format(b, op.format)?,
        max_positions: b.dim("positions", op.max_positions)?,
    };
    Ok(Launch::new(Kernel::IndexQuery, [heads.div_ceil(HEADS_PER_BLOCK), 1, 1], 256, 0, &params))
}
