//! Launch of `query`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::QueryParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, HEAD_DIM, Query};

/// Heads of a block, a warp each.
const HEADS_PER_BLOCK: usize = 4;

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for QueryParams {}

pub(super) fn launch(op: &Query, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let heads = op.tokens.rows() * op.heads;
    let params = QueryParams {
        position: b.positions(&op.tokens)?,
        q: b.value("q", &op.q, Dtype::Bf16, heads * HEAD_DIM)?,
        rope: b.rope(&op.rope, op.max_positions)?,
        out: b.value_mut("out", &op.out, Dtype::Bf16, heads * HEAD_DIM)?,
        rows: b.dim("query heads", heads)?,
        heads: b.dim("heads", op.heads)?,
        max_positions: b.dim("positions", op.max_positions)?,
        eps: op.eps,
    };
    Ok(Launch::new(Kernel::Query, [heads.div_ceil(HEADS_PER_BLOCK), 1, 1], 128, 0, &params))
}
