//! Launch of `topk`.

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::TopKParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, TopK};

/// Columns that one block of 512 threads holds in its registers, 64 each.
const ONE_BLOCK: usize = 512 * 64;
/// Blocks of a cluster, and the shared memory of each: `Shared` of the kernel.
const CLUSTER: usize = 8;
const CLUSTER_SHARED: usize = 37_076;
/// Columns up to which one block is as fast as a cluster, and rows from which on it is so at any width that it holds.
const SHORT: usize = 8192;
const MANY_ROWS: usize = 17;

/// The kernel that takes rows of this width and number, its blocks of a row, their threads and dynamic shared memory.
fn kernel(width: usize, rows: usize) -> (Kernel, usize, u32, usize) {
    if width <= SHORT || (width <= ONE_BLOCK && rows >= MANY_ROWS) {
        (Kernel::TopK, 1, 512, 0)
    } else if width <= CLUSTER * ONE_BLOCK {
        (Kernel::TopKCluster, CLUSTER, 512, CLUSTER_SHARED)
    } else {
        (Kernel::TopKLong, 1, 1024, 0)
    }
}

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
    let (kernel, blocks, threads, shared) = kernel(op.width, rows);
    Ok(Launch::new(kernel, [rows * blocks, 1, 1], threads, shared, &params))
}
