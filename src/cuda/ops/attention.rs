//! Launch of `attention`.

use super::kv_format;
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{self, AttentionParams};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Attention, Compressed, Dtype, HEAD_DIM};

/// Heads of a block.
const HEADS_PER_BLOCK: usize = 16;
/// `Shared` of the kernel: 64 rows and 16 queries at a pitch of 520, weights, scores, sums and places.
const SHARED: usize = 2 * 520 * (64 + 16) + 2 * 72 * 16 + 4 * 68 * 16 + 3 * 4 * 16 + 4 * 8 * 64;

// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for AttentionParams {}

pub(super) fn launch(op: &Attention, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    let len = rows * op.heads * HEAD_DIM;
    let page_bytes = |paged: &crate::ops::Paged| op.format.page_bytes(paged.page_rows);
    let window = b.paged("window", &op.tokens, &op.window, page_bytes(&op.window))?;
    let (source, compressed, selected, k) = match &op.compressed {
        Compressed::None => (ffi::kCompressedNone, window, std::ptr::null(), 0),
        Compressed::Selected { rows: paged, selected, k } => {
            let selected = b.value("selected", selected, Dtype::I32, rows * k)?;
            let paged = b.paged("compressed rows", &op.tokens, paged, page_bytes(paged))?;
            (ffi::kCompressedSelected, paged, selected, *k)
        }
        Compressed::All { rows: paged } => {
            let paged = b.paged("compressed rows", &op.tokens, paged, page_bytes(paged))?;
            (ffi::kCompressedAll, paged, std::ptr::null(), 0)
        }
    };
    let params = AttentionParams {
        position: b.positions(&op.tokens)?,
        q: b.value("q", &op.q, Dtype::Bf16, len)?,
        window,
        compressed,
        selected,
        sink: b.floats("sink", &op.sink, op.heads)?,
        rope: b.rope(&op.rope, op.max_positions)?,
        out: b.value_mut("out", &op.out, Dtype::Bf16, len)?,
        per_request: b.dim("tokens of a request", op.tokens.per_request)?,
        heads: b.dim("heads", op.heads)?,
        source: source as i32,
        k: b.dim("selected rows", k)?,
        format: kv_format(b, op.format)?,
        max_positions: b.dim("positions", op.max_positions)?,
        scale: op.scale,
        pad: 0,
    };
    Ok(Launch::new(Kernel::Attention, [op.heads.div_ceil(HEADS_PER_BLOCK), rows, 1], 256, SHARED, &params))
}
