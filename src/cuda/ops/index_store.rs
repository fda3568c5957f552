//! Launch of `index_store`.

use super::compress::{Stored, pool};
use super::index_format;
use crate::cuda::bindings::Bound;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{INDEX_DIM, IndexStore, PAGE_ROWS};

pub(super) fn launch(op: &IndexStore, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let layout = op.pooling.layout;
    if layout.width != INDEX_DIM || layout.ratio != 4 {
        let expected = INDEX_DIM;
        return Err(CudaError::Length { op: b.op, operand: "a row", expected, found: layout.width });
    }
    let stored = Stored {
        page_rows: PAGE_ROWS,
        page_bytes: op.format.page_bytes(PAGE_ROWS),
        format: index_format(b, op.format)?,
        trained: false,
    };
    pool(Kernel::IndexStore, &op.pooling, &stored, b)
}
