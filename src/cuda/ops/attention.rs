//! Launch of `attention`.

use super::kv_format;
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{self, AttentionParams};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Attention, Compressed, Dtype, HEAD_DIM};

/// Of the kernels for few tokens: heads of a block, and its `Shared`: 64 rows at a pitch of 520, their places and scales, and for each
/// head a query, two halves of scores, a sink, and the denominators of two tiles and of a round's 16; and two lengths.
const HEADS: usize = 16;
const SHARED: usize =
    2 * 520 * 64 + 64 * (8 + 2 * 16) + HEADS * (2 * 520 + 2 * 4 * 68 + 8 * (2 + 16) + 4) + 16;
const SMALL: usize = 5;
/// Blocks of a larger cluster while so many find multiprocessors of their own, each with room for a round's sums beside the rows.
const LARGE: usize = 8;
const LARGE_AT_ONCE: usize = 15;
const LARGE_SHARED: usize = SHARED + 2 * 520 * 64;
/// Of the kernel for many tokens: heads of a block, blocks of a cluster, and its `Wide`: queries, two tiles of 64 rows, and for each
/// head half of its scores, its weights, and the denominators of two halves of a tile and of two parts; and a bit a row.
const WIDE_HEADS: usize = 64;
const WIDE_CLUSTER: usize = 2;
const WIDE: usize = 2 * 512 * (WIDE_HEADS + 2 * 64) + WIDE_HEADS * (4 * 64 + 2 * 64 + 8 * (2 + 2)) + 2 * 8;
/// Tokens times groups of 16 heads from which on they are faster.
const ENOUGH: usize = 48;

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
    // The same bits, whichever runs.
    let groups = op.heads.div_ceil(HEADS);
    if groups * rows >= ENOUGH && b.all.shared_memory >= WIDE {
        let grid = [WIDE_CLUSTER, op.heads.div_ceil(WIDE_HEADS), rows];
        return Ok(Launch::new(Kernel::AttentionWide, grid, 256, WIDE, &params));
    }
    let (kernel, cluster, shared) = if groups * rows <= LARGE_AT_ONCE && b.all.shared_memory >= LARGE_SHARED {
        (Kernel::Attention8, LARGE, LARGE_SHARED)
    } else {
        (Kernel::Attention5, SMALL, SHARED)
    };
    Ok(Launch::new(kernel, [cluster, groups, rows], 256, shared, &params))
}
