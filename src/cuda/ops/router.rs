//! Launch of `router`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::RouterParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch, MatrixFormat};
use crate::ops::{Dtype, Router, Routing};

const MAX_EXPERTS: usize = 1024;
const MAX_CHOSEN: usize = 32;

// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for RouterParams {}

pub(super) fn launch(op: &Router, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    b.at_most("experts", op.experts, MAX_EXPERTS)?;
    b.at_most("experts of a token", op.k, MAX_CHOSEN)?;
    let (bias, table, token, vocab) = match &op.routing {
        Routing::Scored { bias } => {
            (b.floats("bias", bias, op.experts)?, std::ptr::null(), std::ptr::null(), 0)
        }
        Routing::Hash { table, token, vocab } => {
            let table = b.plain("table", table, MatrixFormat::Table, vocab * op.k)?;
            (std::ptr::null(), table, b.value("token", token, Dtype::I32, rows)?, *vocab)
        }
    };
    let params = RouterParams {
        position: b.positions(&op.tokens)?,
        logits: b.value("logits", &op.logits, Dtype::F32, rows * op.experts)?,
        bias,
        table,
        token,
        ids: b.value_mut("ids", &op.ids, Dtype::I32, rows * op.k)?,
        weights: b.value_mut("weights", &op.weights, Dtype::F32, rows * op.k)?,
        experts: b.dim("experts", op.experts)?,
        k: b.dim("experts of a token", op.k)?,
        vocab: b.dim("vocabulary", vocab)?,
        factor: op.factor,
    };
    Ok(Launch::new(Kernel::Router, [rows, 1, 1], 128, 0, &params))
}
