//! Launches of `hyper`: before, after and past the last sublayer.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{HyperHeadParams, HyperPostParams, HyperPreParams};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, HyperHead, HyperPost, HyperPre};

const MAX_STREAMS: usize = 4;
const THREADS: u32 = 256;
/// Blocks of a cluster, the tokens that it serves at most (the kernel's limit is one more, and slower), and the clusters that an H200
/// holds at once.
const BLOCKS: usize = 8;
const MAX_TOKENS: usize = 7;
const CLUSTERS: usize = 15;
/// `Shared` of the kernels: gains of 512 columns; and for each of 8 tokens its streams, the sums of 8 warps, of 8 blocks and the
/// squares of either, gates, and whether it is padding.
const SHARED: usize = 4 * 512 + 8 * (256 * 16 + (8 * 32 + 8 * 32 + 8 * 8 + MAX_STREAMS + 1) * 4);
/// Columns of a thread of `post`.
const COLUMNS: usize = 4;

// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for HyperPreParams {}
// SAFETY: generated from the kernel's header; pointers and 4-byte fields without gaps.
unsafe impl Params for HyperPostParams {}
// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for HyperHeadParams {}

pub(super) fn pre(op: &HyperPre, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let (rows, n) = (op.tokens.rows(), op.n);
    b.at_most("streams", n, MAX_STREAMS)?;
    let outputs = (2 + n) * n;
    // The mixing matrices have clusters of their own while all run at once: the same bits.
    let split = rows.div_ceil(CLUSTERS / 2) <= MAX_TOKENS;
    // As few tokens a cluster as the clusters that follow one another at a place allow.
    let at_once = if split { CLUSTERS / 2 } else { CLUSTERS };
    let rounds = rows.div_ceil(at_once * MAX_TOKENS).max(1);
    let per_cluster = rows.div_ceil(at_once * rounds).max(1);
    let params = HyperPreParams {
        position: b.positions(&op.tokens)?,
        streams: b.value("streams", &op.streams, Dtype::Bf16, rows * n * op.hidden)?,
        mix: b.floats("mix", &op.mix, outputs * n * op.hidden)?,
        base: b.floats("base", &op.base, outputs)?,
        scale: b.floats("scale", &op.scale, 3)?,
        norm: b.gain("norm", &op.norm, op.hidden)?,
        out: b.value_mut("out", &op.out, Dtype::Bf16, rows * op.hidden)?,
        post: b.value_mut("post", &op.post, Dtype::F32, rows * n)?,
        comb: b.value_mut("comb", &op.comb, Dtype::F32, rows * n * n)?,
        n: b.dim("streams", n)?,
        hidden: b.dim("hidden size", op.hidden)?,
        sinkhorn_iters: b.dim("iterations", op.sinkhorn_iters)?,
        eps: op.eps,
        hc_eps: op.hc_eps,
        rows: b.dim("rows", rows)?,
        per_cluster: b.dim("tokens of a cluster", per_cluster)?,
        pad: 0,
    };
    let (kernel, roles) = if split { (Kernel::HyperPreSplit, 2) } else { (Kernel::HyperPre, 1) };
    Ok(Launch::new(kernel, [BLOCKS, rows.div_ceil(per_cluster), roles], THREADS, SHARED, &params))
}

pub(super) fn post(op: &HyperPost, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let (rows, n) = (op.tokens.rows(), op.n);
    b.at_most("streams", n, MAX_STREAMS)?;
    let params = HyperPostParams {
        position: b.positions(&op.tokens)?,
        streams: b.value("streams", &op.streams, Dtype::Bf16, rows * n * op.hidden)?,
        y: b.value("y", &op.y, Dtype::Bf16, rows * op.hidden)?,
        post: b.value("post", &op.post, Dtype::F32, rows * n)?,
        comb: b.value("comb", &op.comb, Dtype::F32, rows * n * n)?,
        out: b.value_mut("out", &op.out, Dtype::Bf16, rows * n * op.hidden)?,
        n: b.dim("streams", n)?,
        hidden: b.dim("hidden size", op.hidden)?,
    };
    let columns = op.hidden.div_ceil(COLUMNS * THREADS as usize).max(1);
    Ok(Launch::new(Kernel::HyperPost, [rows, columns, 1], THREADS, 0, &params))
}

pub(super) fn head(op: &HyperHead, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let (rows, n) = (op.tokens.rows(), op.n);
    b.at_most("streams", n, MAX_STREAMS)?;
    let params = HyperHeadParams {
        streams: b.value("streams", &op.streams, Dtype::Bf16, rows * n * op.hidden)?,
        rows: b.value("rows", &op.rows, Dtype::I32, op.samples)?,
        mix: b.floats("mix", &op.mix, n * n * op.hidden)?,
        base: b.floats("base", &op.base, n)?,
        scale: b.floats("scale", &op.scale, 1)?,
        norm: b.gain("norm", &op.norm, op.hidden)?,
        out: b.value_mut("out", &op.out, Dtype::Bf16, op.samples * op.hidden)?,
        tokens: b.dim("rows", rows)?,
        n: b.dim("streams", n)?,
        hidden: b.dim("hidden size", op.hidden)?,
        eps: op.eps,
        hc_eps: op.hc_eps,
        pad: 0,
    };
    Ok(Launch::new(Kernel::HyperHead, [BLOCKS, op.samples, 1], THREADS, SHARED, &params))
}
