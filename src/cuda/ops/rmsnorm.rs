//! Launch of `rmsnorm`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::RmsNormParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, RmsNorm};

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for RmsNormParams {}

pub(super) fn launch(op: &RmsNorm, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let len = op.rows * op.width;
    let params = RmsNormParams {
        x: b.value("x", &op.x, Dtype::Bf16, len)?,
        out: b.value_mut("out", &op.out, Dtype::Bf16, len)?,
        weight: b.gain("weight", &op.weight, op.width)?,
        width: b.dim("width", op.width)?,
        eps: op.eps,
    };
    Ok(Launch::new(Kernel::RmsNorm, [op.rows, 1, 1], 256, 0, &params))
}
