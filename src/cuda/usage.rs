//! What this process holds of its GPUs' memory, and what everybody holds of one of them.

use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::result;

use super::CudaError;
use super::driver::{failed, primary_context};

static HELD: AtomicU64 = AtomicU64::new(0);

pub(super) fn took(bytes: usize) {
    HELD.fetch_add(bytes as u64, Ordering::Relaxed);
}

pub(super) fn gave(bytes: usize) {
    HELD.fetch_sub(bytes as u64, Ordering::Relaxed);
}

/// Bytes that the engines of this process have allocated on GPUs and not given back.
#[must_use]
pub fn held_bytes() -> u64 {
    HELD.load(Ordering::Relaxed)
}

/// Bytes of a GPU's memory in use, by this process and all others.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::NoDevice`], [`CudaError::Driver`].
pub fn used_bytes(ordinal: usize) -> Result<u64, CudaError> {
    let context = primary_context(ordinal)?;
    context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
    let (free, total) = result::mem_get_info().map_err(failed("cuMemGetInfo"))?;
    Ok((total - free) as u64)
}
