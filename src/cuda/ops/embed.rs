//! Launch of `embed`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::EmbedParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Embed};

/// Threads of a block, and elements of a token that each has.
const THREADS: usize = 256;
const EACH: usize = 8;

// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for EmbedParams {}

pub(super) fn launch(op: &Embed, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    let params = EmbedParams {
        position: b.positions(&op.tokens)?,
        token: b.value("token", &op.token, Dtype::I32, rows)?,
        slot: b.value("state_slot", &op.carry.slot, Dtype::I32, op.tokens.requests)?,
        carry: b.carry(&op.carry)?,
        weight: b.gain("weight", &op.weight, op.vocab * op.hidden)?,
        out: b.value_mut("out", &op.out, Dtype::Bf16, rows * op.streams * op.hidden)?,
        ids: b.value_mut("ids", &op.ids, Dtype::I32, rows)?,
        vocab: b.dim("vocabulary", op.vocab)?,
        hidden: b.dim("hidden size", op.hidden)?,
        streams: b.dim("streams", op.streams)?,
        per_request: b.dim("tokens of a request", op.tokens.per_request.max(1))?,
        slots: b.dim("state slots", op.carry.slots)?,
        pad: 0,
    };
    Ok(Launch::new(Kernel::Embed, [rows, op.hidden.div_ceil(THREADS * EACH), 1], THREADS as u32, 0, &params))
}
