//! Launch of `index_store`.

use super::compress::Pooling;
use super::index_format;
use crate::cuda::bindings::Bound;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{INDEX_DIM, IndexStore, PAGE_ROWS};

pub(super) fn launch(op: &IndexStore, b: &Bound<'_>) -> Result<Launch, CudaError> {
    if op.layout.width != INDEX_DIM || op.layout.ratio != 4 {
        let expected = INDEX_DIM;
        return Err(CudaError::Length { op: b.op, operand: "a row", expected, found: op.layout.width });
    }
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
        page_rows: PAGE_ROWS,
        page_bytes: op.format.page_bytes(PAGE_ROWS),
        format: index_format(b, op.format)?,
        trained: false,
        max_positions: op.max_positions,
        eps: op.eps,
    };
    pooling.launch(Kernel::IndexStore, b)
}
