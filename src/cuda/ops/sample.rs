//! Launch of `sample`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::SampleParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Sample};

/// Blocks of a cluster that shares a row, and the vocabulary up to which one block takes it.
const CLUSTER: usize = 8;
const ONE_BLOCK: usize = 8192;
/// Warps of a block, and ids that one of them takes at once.
const WARPS: usize = 16;
const IDS: usize = 128;
/// `SampleShared` of the kernel.
const SHARED: usize = 25_904;

// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for SampleParams {}

pub(super) fn launch(op: &Sample, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let n = op.samples;
    let most = b.all.shared_memory.saturating_sub(SHARED) / Dtype::F32.size() / (WARPS * IDS) * (WARPS * IDS);
    b.at_most("vocabulary", op.vocab, CLUSTER * most)?;
    let blocks = if op.vocab <= ONE_BLOCK { 1 } else { CLUSTER };
    let run = op.vocab.div_ceil(blocks * WARPS * IDS) * IDS;
    let logits = WARPS * run * Dtype::F32.size();
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
        run: b.dim("ids of a warp", run)?,
    };
    let kernel = if blocks == 1 { Kernel::Sample } else { Kernel::SampleCluster };
    Ok(Launch::new(kernel, [n * blocks, 1, 1], 512, SHARED + logits, &params))
}
