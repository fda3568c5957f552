//! Page-locked host memory and points in a stream: what lets copies run beside the host.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, result};

use super::driver::failed;
use super::{CudaError, Fence, Staging};

/// Page-locked memory of a context.
#[derive(Debug)]
pub(super) struct Pinned {
    address: *mut u8,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_host(bytes.max(1), 0) }.map_err(failed("cuMemHostAlloc"))?;
        let pinned = Self { address: address.cast(), bytes, context: Arc::clone(context) };
        // SAFETY: just allocated, of this size.
        unsafe { std::ptr::write_bytes(pinned.address, 0, bytes) };
        Ok(pinned)
    }
}

impl Staging for Pinned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, written whole when it was made, and shared only as `self` is.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `new`, freed once. Whoever started a copy has waited for it.
            let _ = unsafe { result::free_host(self.address.cast::<c_void>()) };
        }
    }
}

/// An event that was recorded.
#[derive(Debug)]
pub(super) struct Recorded(pub(super) CudaEvent);

impl Fence for Recorded {
    fn wait(&self) -> Result<(), CudaError> {
        self.0.synchronize().map_err(failed("cuEventSynchronize"))
    }

    fn since(&self, earlier: &dyn Fence) -> Option<f32> {
        let earlier = earlier.as_any().downcast_ref::<Self>()?;
        earlier.0.elapsed_ms(&self.0).ok().map(|ms| 1000.0 * ms)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
