//! Launch of `compress`, and of every kernel that pools tokens.

use super::kv_format;
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::CompressParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{BLOCK_TOKENS, BufferId, Compress, Dtype, HEAD_DIM, StateLayout, Tokens, Value};

// SAFETY: generated from the kernels' header; gaps are explicit.
unsafe impl Params for CompressParams {}

/// What `compress` and `index_store` have in common.
pub(super) struct Pooling<'a> {
    pub(super) tokens: &'a Tokens,
    pub(super) kvg: &'a Value,
    pub(super) ape: &'a Value,
    pub(super) norm: &'a Value,
    pub(super) rope: &'a Value,
    pub(super) state_slot: &'a Value,
    pub(super) row_slot: &'a Value,
    pub(super) state: BufferId,
    pub(super) state_slots: usize,
    pub(super) layout: StateLayout,
    pub(super) pool: BufferId,
    pub(super) pages: usize,
    pub(super) page_rows: usize,
    pub(super) page_bytes: usize,
    pub(super) format: i32,
    pub(super) trained: bool,
    pub(super) max_positions: usize,
    pub(super) eps: f32,
}

/// Blocks that share a request: many for a prefill block, which starts at a multiple of 256 tokens; else one, so that
/// every row is pooled before the state that it reads is replaced.
fn splits(tokens: &Tokens, ratio: usize) -> usize {
    if tokens.per_request < BLOCK_TOKENS { 1 } else { tokens.per_request / ratio }
}

impl Pooling<'_> {
    pub(super) fn launch(&self, kernel: Kernel, b: &Bound<'_>) -> Result<Launch, CudaError> {
        let (rows, projection) = (self.tokens.rows(), self.layout.projection());
        b.at_most("tokens of a request", self.tokens.per_request, BLOCK_TOKENS)?;
        let splits = splits(self.tokens, self.layout.ratio);
        let params = CompressParams {
            position: b.positions(self.tokens)?,
            kvg: b.value("kvg", self.kvg, Dtype::F32, rows * projection)?,
            ape: b.floats("ape", self.ape, self.layout.ratio * projection / 2)?,
            norm: b.gain("norm", self.norm, self.layout.width)?,
            rope: b.rope(self.rope, self.max_positions)?,
            state_slot: b.value("state_slot", self.state_slot, Dtype::I32, self.tokens.requests)?,
            row_slot: b.value("row_slot", self.row_slot, Dtype::I64, rows)?,
            state: b.buffer("state", self.state, 4 * self.state_slots * self.layout.len())? as *mut f32,
            pool: b.buffer("pool", self.pool, self.pages * self.page_bytes)? as *mut u8,
            per_request: b.dim("tokens of a request", self.tokens.per_request)?,
            state_slots: b.dim("state slots", self.state_slots)?,
            pages: b.dim("pages", self.pages)?,
            page_rows: b.dim("rows of a page", self.page_rows)?,
            format: self.format,
            trained: i32::from(self.trained),
            max_positions: b.dim("positions", self.max_positions)?,
            splits: b.dim("splits", splits)?,
            eps: self.eps,
            pad: 0,
        };
        let threads = b.dim("width", self.layout.width)?.unsigned_abs();
        Ok(Launch::new(kernel, [self.tokens.requests * splits, 1, 1], threads, 0, &params))
    }
}

pub(super) fn launch(op: &Compress, b: &Bound<'_>) -> Result<Launch, CudaError> {
    if op.layout.width != HEAD_DIM {
        let expected = HEAD_DIM;
        return Err(CudaError::Length { op: b.op, operand: "a row", expected, found: op.layout.width });
    }
    let kernel = if op.layout.ratio == 4 { Kernel::CompressC4 } else { Kernel::CompressC128 };
    let pooling = Pooling {
        tokens: &op.tokens,
        kvg: &op.kvg,
        ape: &op.ape,
        norm: &op.norm,
        rope: &op.rope,
        state_slot: &op.state_slot,
        row_slot: &op.row_slot,
        state: op.state,
        state_slots: op.state_slots,
        layout: op.layout,
        pool: op.pool,
        pages: op.pages,
        page_rows: op.page_rows,
        page_bytes: op.format.page_bytes(op.page_rows),
        format: kv_format(b, op.format)?,
        trained: op.trained,
        max_positions: op.max_positions,
        eps: op.eps,
    };
    pooling.launch(kernel, b)
}
