//! What runs kernels, and memory on it.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{CudaError, Launch, Reading, Route, delay_launch};

/// A step's launches, by node, and how they reach the device.
#[derive(Clone, Debug)]
pub struct Script {
    pub launches: Vec<Launch>,
    pub route: Route,
    /// Microseconds that a node's stream is kept busy before it, by node: makes a race loud.
    pub delays: BTreeMap<usize, u32>,
}

/// A captured graph that has not run: it can be read, and nothing about it changes any more.
pub trait Capture: std::fmt::Debug + Send {
    /// # Errors
    /// [`CudaError::Driver`].
    fn read(&self) -> Result<Reading, CudaError>;

    /// The same graph, made executable.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    fn instantiate(self: Box<Self>) -> Result<Box<dyn Replay>, CudaError>;
}

/// A captured graph that runs.
pub trait Replay: std::fmt::Debug + Send {
    /// Launches it on the backend's stream.
    ///
    /// # Safety
    /// Every address that was captured is valid for what its kernel does.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    unsafe fn replay(&self) -> Result<(), CudaError>;
}

/// Host memory that copies run from and to while the host does something else.
pub trait Staging: std::fmt::Debug + Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Staging for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// A point in the backend's stream.
pub trait Fence: std::fmt::Debug + Send {
    /// Waits until everything before it is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`]: also what something before it did wrong.
    fn wait(&self) -> Result<(), CudaError>;

    /// Microseconds from an earlier point to this one, both waited for; `None` where there is no clock.
    fn since(&self, earlier: &dyn Fence) -> Option<f32> {
        let _ = earlier;
        None
    }

    fn as_any(&self) -> &dyn Any;
}

/// The point of a backend that has always caught up.
impl Fence for () {
    fn wait(&self) -> Result<(), CudaError> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A device: the driver's, or the emulator. Calls are synchronous but for launches, which run in order.
pub trait Backend: std::fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Streaming multiprocessors, for persistent grids.
    fn multiprocessors(&self) -> usize;

    /// Bytes of shared memory that a block may have.
    fn shared_memory(&self) -> usize;

    /// Device memory, aligned to 256 bytes.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    fn allocate(&self, bytes: usize) -> Result<u64, CudaError>;

    /// # Safety
    /// `address` came from [`allocate`](Self::allocate) with `bytes`, was not freed, and nothing uses it any more.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// Zeroes memory, after every launch so far.
    ///
    /// # Safety
    /// `address .. address + bytes` lies within one allocation.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    unsafe fn clear(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        let zeros = vec![0u8; bytes.min(1 << 20)];
        for start in (0..bytes).step_by(zeros.len().max(1)) {
            // SAFETY: a part of the caller's range.
            unsafe { self.upload(address + start as u64, &zeros[..zeros.len().min(bytes - start)])? };
        }
        Ok(())
    }

    /// Copies to the device, after every launch so far.
    ///
    /// # Safety
    /// `to .. to + from.len()` lies within one allocation.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError>;

    /// Copies from the device, after every launch so far.
    ///
    /// # Safety
    /// `from .. from + to.len()` lies within one allocation.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError>;

    /// Staging memory of zeros.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    fn staging(&self, bytes: usize) -> Result<Box<dyn Staging>, CudaError> {
        Ok(Box::new(vec![0u8; bytes]))
    }

    /// Starts a copy to the device, after every launch so far.
    ///
    /// # Safety
    /// As [`upload`](Self::upload); and `from` lives unchanged until a [`fence`](Self::fence) made later is waited for.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    unsafe fn start_upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.upload(to, from) }
    }

    /// Starts a copy from the device, after every launch so far.
    ///
    /// # Safety
    /// As [`download`](Self::download); and `to` lives untouched until a [`fence`](Self::fence) made later is waited for.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    unsafe fn start_download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.download(from, to) }
    }

    /// The point after everything that was started so far.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    fn fence(&self) -> Result<Box<dyn Fence>, CudaError> {
        self.synchronize()?;
        Ok(Box::new(()))
    }

    /// # Safety
    /// The parameters are what the kernel takes, and every address in them is valid for what it does.
    ///
    /// # Errors
    /// [`CudaError::NoKernel`], [`CudaError::Driver`], [`CudaError::Emulator`].
    unsafe fn launch(&self, launch: &Launch) -> Result<(), CudaError>;

    /// Launches a script. A backend with one stream runs it in append order, with its delays.
    ///
    /// # Safety
    /// As [`launch`](Self::launch), for every launch.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    unsafe fn issue(&self, script: &Script) -> Result<(), CudaError> {
        for (at, launch) in script.launches.iter().enumerate() {
            if let Some(microseconds) = script.delays.get(&at) {
                // SAFETY: it touches no memory.
                unsafe { self.launch(&delay_launch(*microseconds))? };
            }
            // SAFETY: the caller's.
            unsafe { self.launch(launch)? };
        }
        Ok(())
    }

    /// Captures a script instead of running it.
    ///
    /// # Safety
    /// The parameters are what the kernels take. Addresses in them matter only once the graph runs.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] where there is no capture; else as [`launch`](Self::launch).
    unsafe fn capture(self: Arc<Self>, script: Script) -> Result<Box<dyn Capture>, CudaError> {
        let _ = script;
        Err(CudaError::Unsupported { op: "capture", what: "a captured graph off a GPU" })
    }

    /// Waits for every launch so far.
    ///
    /// # Errors
    /// [`CudaError::Driver`]: also what an earlier launch did wrong.
    fn synchronize(&self) -> Result<(), CudaError>;
}

/// Device memory: owned, or a share of a caller's.
#[derive(Debug)]
pub struct DeviceBuffer {
    /// Who frees the memory, if not this. Before the backend, without which it cannot.
    owner: Option<Arc<dyn Any + Send + Sync>>,
    backend: Arc<dyn Backend>,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// Memory with any content.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(backend: &Arc<dyn Backend>, bytes: usize) -> Result<Self, CudaError> {
        let address = backend.allocate(bytes.max(1))?;
        Ok(Self { backend: Arc::clone(backend), address, bytes, owner: None })
    }

    /// Memory full of zeros.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn zeroed(backend: &Arc<dyn Backend>, bytes: usize) -> Result<Self, CudaError> {
        let buffer = Self::new(backend, bytes)?;
        // SAFETY: the whole of a buffer.
        unsafe { backend.clear(buffer.address, bytes)? };
        Ok(buffer)
    }

    /// Memory that holds a copy of `bytes`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn from_bytes(backend: &Arc<dyn Backend>, bytes: &[u8]) -> Result<Self, CudaError> {
        let buffer = Self::new(backend, bytes.len())?;
        buffer.upload(0, bytes)?;
        Ok(buffer)
    }

    /// Memory of the backend's device that `owner` frees when the last share of it is dropped.
    #[cfg(feature = "cust")]
    pub(super) fn shared(
        backend: Arc<dyn Backend>,
        address: u64,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { backend, address, bytes, owner: Some(owner) }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device address, valid as long as the buffer.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// # Errors
    /// [`CudaError::Range`] or [`CudaError::Driver`].
    pub fn upload(&self, offset: usize, from: &[u8]) -> Result<(), CudaError> {
        let to = self.within(offset, from.len())?;
        // SAFETY: the range was just checked.
        unsafe { self.backend.upload(to, from) }
    }

    /// # Errors
    /// [`CudaError::Range`] or [`CudaError::Driver`].
    pub fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), CudaError> {
        let from = self.within(offset, to.len())?;
        // SAFETY: the range was just checked.
        unsafe { self.backend.download(from, to) }
    }

    /// Starts a copy to the start of the buffer.
    ///
    /// # Safety
    /// `from` lives unchanged until a fence made later is waited for.
    ///
    /// # Errors
    /// [`CudaError::Range`] or [`CudaError::Driver`].
    pub unsafe fn start_upload(&self, from: &[u8]) -> Result<(), CudaError> {
        let to = self.within(0, from.len())?;
        // SAFETY: the range was just checked; the rest is the caller's.
        unsafe { self.backend.start_upload(to, from) }
    }

    /// Starts a copy from the buffer.
    ///
    /// # Safety
    /// `to` lives untouched until a fence made later is waited for.
    ///
    /// # Errors
    /// [`CudaError::Range`] or [`CudaError::Driver`].
    pub unsafe fn start_download(&self, offset: usize, to: &mut [u8]) -> Result<(), CudaError> {
        let from = self.within(offset, to.len())?;
        // SAFETY: the range was just checked; the rest is the caller's.
        unsafe { self.backend.start_download(from, to) }
    }

    fn within(&self, offset: usize, len: usize) -> Result<u64, CudaError> {
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(CudaError::Range { offset, len, bytes: self.bytes });
        }
        Ok(self.address + offset as u64)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.owner.is_some() {
            return;
        }
        // SAFETY: this is the only owner, and both backends free memory only after the work that was launched before.
        unsafe { self.backend.free(self.address, self.bytes.max(1)) }
    }
}
