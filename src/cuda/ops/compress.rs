//! Launch of `compress`, and of every kernel that pools tokens.

use super::kv_format;
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::CompressParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{BLOCK_TOKENS, Compress, Dtype, HEAD_DIM, Pooling, Tokens};

// SAFETY: generated from the kernels' header; gaps are explicit.
unsafe impl Params for CompressParams {}

/// A page of the pool, and how its rows are stored.
pub(super) struct Stored {
    pub(super) page_rows: usize,
    pub(super) page_bytes: usize,
    pub(super) format: i32,
    pub(super) trained: bool,
}

/// Blocks that share a request: many for a prefill block, which starts at a multiple of 256 tokens; else one, so that
/// every row is pooled before the state that it reads is replaced.
fn splits(tokens: &Tokens, ratio: usize) -> usize {
    if tokens.per_request < BLOCK_TOKENS { 1 } else { tokens.per_request / ratio }
}

pub(super) fn pool(kernel: Kernel, p: &Pooling, stored: &Stored, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let (rows, projection) = (p.tokens.rows(), p.layout.projection());
    b.at_most("tokens of a request", p.tokens.per_request, BLOCK_TOKENS)?;
    let splits = splits(&p.tokens, p.layout.ratio);
    let params = CompressParams {
        position: b.positions(&p.tokens)?,
        kvg: b.value("kvg", &p.kvg, Dtype::F32, rows * projection)?,
        ape: b.floats("ape", &p.ape, p.layout.ratio * projection / 2)?,
        norm: b.gain("norm", &p.norm, p.layout.width)?,
        rope: b.rope(&p.rope, p.max_positions)?,
        state_slot: b.value("state_slot", &p.state_slot, Dtype::I32, p.tokens.requests)?,
        row_slot: b.value("row_slot", &p.row_slot, Dtype::I64, rows)?,
        state: b.buffer("state", p.state, 4 * p.state_slots * p.layout.len())? as *mut f32,
        pool: b.buffer("pool", p.pool, p.pages * stored.page_bytes)? as *mut u8,
        per_request: b.dim("tokens of a request", p.tokens.per_request)?,
        state_slots: b.dim("state slots", p.state_slots)?,
        pages: b.dim("pages", p.pages)?,
        page_rows: b.dim("rows of a page", stored.page_rows)?,
        format: stored.format,
        trained: i32::from(stored.trained),
        max_positions: b.dim("positions", p.max_positions)?,
        splits: b.dim("splits", splits)?,
        eps: p.eps,
        pad: 0,
    };
    let threads = b.dim("width", p.layout.width)?.unsigned_abs();
    Ok(Launch::new(kernel, [p.tokens.requests * splits, 1, 1], threads, 0, &params))
}

pub(super) fn launch(op: &Compress, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let layout = op.pooling.layout;
    if layout.width != HEAD_DIM {
        let expected = HEAD_DIM;
        return Err(CudaError::Length { op: b.op, operand: "a row", expected, found: layout.width });
    }
    let kernel = if layout.ratio == 4 { Kernel::CompressC4 } else { Kernel::CompressC128 };
    let stored = Stored {
        page_rows: op.page_rows,
        page_bytes: op.format.page_bytes(op.page_rows),
        format: kv_format(b, op.format)?,
        trained: op.trained,
    };
    pool(kernel, &op.pooling, &stored, b)
}
