//! Launch of `sample`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::SampleParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Sample};

/// Masses are fixed point with 40 bits; their sum over this many ids stays within 64.
const MAX_VOCAB: usize = 1 << 22;

// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for SampleParams {}

pub(super) fn launch(op: &Sample, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let n = op.samples;
    b.at_most("vocabulary", op.vocab, MAX_VOCAB)?;
    let params = SampleParams {
        logits: b.value("logits", &op.logits, Dtype::F32, n * op.vocab)?,
        temperature: b.value("temperature", &op.temperature, Dtype::F32, n)?,
        top_p: b.value("top_p", &op.top_p, Dtype::F32, n)?,
        min_p: b.value("min_p", &op.min_p, Dtype::F32, n)?,
        top_k: b.value("top_k", &op.top_k, Dtype::I32, n)?,
        seed: b.value("seed", &op.seed, Dtype::U64, n)?,
        position: b.value("position", &op.position, Dtype::I32, n)?,
        token: b.value_mut("token", &op.token, Dtype::I32, n)?,
        status: b.value_mut("status", &op.status, Dtype::I32, n)?,
        slot: b.value("state_slot", &op.carry.slot, Dtype::I32, op.requests())?,
        carry: b.carry(&op.carry)?.cast_mut(),
        vocab: b.dim("vocabulary", op.vocab)?,
        per_request: b.dim("samples of a request", op.per_request.max(1))?,
        slots: b.dim("state slots", op.carry.slots)?,
        pad: 0,
    };
    Ok(Launch::new(Kernel::Sample, [n, 1, 1], 1024, 0, &params))
}
