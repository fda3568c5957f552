//! Launch of `rope_store`.

use super::kv_format;
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::RopeStoreParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, HEAD_DIM, PAGE_ROWS, RopeStore};

/// Rows of a block, a warp each.
const ROWS_PER_BLOCK: usize = 4;

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for RopeStoreParams {}

pub(super) fn launch(op: &RopeStore, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    let params = RopeStoreParams {
        position: b.positions(&op.tokens)?,
        kv: b.value("kv", &op.kv, Dtype::Bf16, rows * HEAD_DIM)?,
        norm: b.gain("norm", &op.norm, HEAD_DIM)?,
        rope: b.rope(&op.rope, op.max_positions)?,
        slot: b.value("slot", &op.slot, Dtype::I64, rows)?,
        pool: b.buffer("pool", op.pool, op.pages * op.format.page_bytes(PAGE_ROWS))? as *mut u8,
        rows: b.dim("rows", rows)?,
        pages: b.dim("pages", op.pages)?,
        format: kv_format(b, op.format)?,
        trained: i32::from(op.trained),
        max_positions: b.dim("positions", op.max_positions)?,
        eps: op.eps,
    };
    Ok(Launch::new(Kernel::RopeStore, [rows.div_ceil(ROWS_PER_BLOCK), 1, 1], 128, 0, &params))
}
