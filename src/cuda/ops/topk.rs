//! Launch of `topk`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::TopKParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, TopK};

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for TopKParams {}

pub(super) fn launch(op: &TopK, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    let params = TopKParams {
        position: b.positions(&op.tokens)?,
        logits: b.value("logits", &op.logits, Dtype::F32, rows * op.width)?,
        selected: b.value_mut("selected", &op.selected, Dtype::I32, rows * op.k)?,
        width: b.dim("width", op.width)?,
        k: b.dim("k", op.k)?,
    };
    Ok(Launch::new(Kernel::TopK, [rows, 1, 1], 1024, 0, &params))
}
