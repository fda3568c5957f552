//! Launch of `attention`.

use super::{AttentionBlocks, kv_format};
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{self, AttentionParams};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Attention, Compressed, Dtype, HEAD_DIM};

/// Heads of a block.
const HEADS: usize = 16;
/// Parts into which a token's rows are cut, one a block of a cluster: more where the rows are many.
const FEW: usize = 5;
const MANY: usize = 8;
/// Tokens times groups of heads from which on a block takes all parts: they fill a GPU without clusters.
const ENOUGH: usize = 48;
/// `Wide` of the kernels for blocks with much shared memory: queries of 64 heads, two tiles of 64 rows, and what a head holds.
const WIDE: usize = 2 * 512 * (64 + 2 * 64) + 2 * 4 * 64 + 2 * 8;
/// Heads of a block of theirs.
const WIDE_HEADS: usize = 64;
/// `Shared` of the kernel: 64 rows at a pitch of 520 with their places and scales, and for each head a query, scores and sums.
const SHARED: usize = 2 * 520 * 64 + 64 * (8 + 3 * 16) + HEADS * (2 * 520 + 4 * 68 + 3 * 4) + 16;

// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for AttentionParams {}

pub(super) fn launch(op: &Attention, b: &Bound<'_>, blocks: AttentionBlocks) -> Result<Launch, CudaError> {
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
    let parts = if matches!(op.compressed, Compressed::All { .. }) { MANY } else { FEW };
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
        parts: parts as i32,
    };
    if blocks == AttentionBlocks::Wide && b.all.shared_memory >= WIDE {
        let (kernel, blocks) =
            if parts == MANY { (Kernel::AttentionWide4, 4) } else { (Kernel::AttentionWide2, 2) };
        let grid = [blocks, op.heads.div_ceil(WIDE_HEADS), rows];
        return Ok(Launch::new(kernel, grid, 256, WIDE, &params));
    }
    let groups = op.heads.div_ceil(HEADS);
    let (kernel, grid) = match parts {
        _ if groups * rows >= ENOUGH => (Kernel::AttentionAlone, [groups, rows, 1]),
        MANY => (Kernel::Attention8, [parts, groups, rows]),
        _ => (Kernel::Attention5, [parts, groups, rows]),
    };
    Ok(Launch::new(kernel, grid, 256, SHARED, &params))
}
