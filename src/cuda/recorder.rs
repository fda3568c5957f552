//! A backend that notes which kernels reach the device, for tests of what a set of cases covers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Backend, Capture, CudaError, Fence, Kernel, Launch, Script, Staging};

/// Another backend, and the kernels that were launched through this one or captured to be replayed.
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<dyn Backend>,
    multiprocessors: usize,
    shared_memory: usize,
    launched: Arc<Mutex<BTreeSet<String>>>,
}

impl Recorder {
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        let (multiprocessors, shared_memory) = (inner.multiprocessors(), inner.shared_memory());
        Self { inner, multiprocessors, shared_memory, launched: Arc::default() }
    }

    /// The same device, and the same record, with another size by which launches choose their kernels. A kernel that is
    /// compiled for its architecture's shared memory must not be chosen by a smaller one.
    #[must_use]
    pub fn as_if(&self, multiprocessors: usize, shared_memory: usize) -> Self {
        let (inner, launched) = (Arc::clone(&self.inner), Arc::clone(&self.launched));
        Self { inner, multiprocessors, shared_memory, launched }
    }

    /// The kernels so far, by symbol.
    #[must_use]
    pub fn launched(&self) -> BTreeSet<String> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, launch: &Launch) {
        if !launch.is_empty() {
            let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
            launched.insert(launch.symbol().into_owned());
        }
    }

    fn note_all(&self, script: &Script) {
        script.launches.iter().for_each(|launch| self.note(launch));
        if !script.delays.is_empty() {
            let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
            launched.insert(Kernel::Delay.symbol().to_owned());
        }
    }
}

impl Backend for Recorder {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        self.inner.allocate(bytes)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        // SAFETY: the caller's.
        unsafe { self.inner.free(address, bytes) }
    }

    unsafe fn clear(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.clear(address, bytes) }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.upload(to, from) }
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.download(from, to) }
    }

    fn staging(&self, bytes: usize) -> Result<Box<dyn Staging>, CudaError> {
        self.inner.staging(bytes)
    }

    unsafe fn start_upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.start_upload(to, from) }
    }

    unsafe fn start_download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.inner.start_download(from, to) }
    }

    fn fence(&self) -> Result<Box<dyn Fence>, CudaError> {
        self.inner.fence()
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), CudaError> {
        self.note(launch);
        // SAFETY: the caller's.
        unsafe { self.inner.launch(launch) }
    }

    unsafe fn issue(&self, script: &Script) -> Result<(), CudaError> {
        self.note_all(script);
        // SAFETY: the caller's.
        unsafe { self.inner.issue(script) }
    }

    unsafe fn capture(self: Arc<Self>, script: Script) -> Result<Box<dyn Capture>, CudaError> {
        self.note_all(&script);
        // SAFETY: the caller's.
        unsafe { Arc::clone(&self.inner).capture(script) }
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.inner.synchronize()
    }
}
