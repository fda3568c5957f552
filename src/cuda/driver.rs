//! A GPU through the driver API: context, one stream, memory and modules.
//!
//! The one place where cudarc's event tracking is switched off: it would order accesses by events that have holes under
//! capture and between several readers (it keeps one read event a slice). Order here is the stream's alone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use super::kernels::fatbin;
use super::staging::{Pinned, Recorded};
use super::{Backend, Capture, CudaError, Fence, Launch, Script, Staging, usage};

/// Dynamic shared memory that needs no permission.
const PLAIN_SHARED: u32 = 48 << 10;

/// A function that the driver loaded; valid as long as the context, whose modules are never unloaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(pub(super) sys::CUfunction);

// SAFETY: a function handle is a key into the driver, which may be used from any thread with the context current.
unsafe impl Send for Function {}

/// A fatbin at an address that the driver accepts, and its module.
#[derive(Clone, Copy, Debug)]
struct Module(sys::CUmodule);

// SAFETY: as for `Function`.
unsafe impl Send for Module {}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<Cow<'static, str>, Module>,
    functions: HashMap<Cow<'static, str>, Function>,
}

/// Streams and events beside the main one, made as they are needed.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) streams: Vec<Arc<CudaStream>>,
    pub(super) events: Vec<CudaEvent>,
}

/// One GPU with its primary context, a main stream, and side streams for the lanes of a step.
#[derive(Debug)]
pub struct Gpu {
    /// The owner of a borrowed stream. Before the context: the stream goes first.
    #[cfg(feature = "cust")]
    pub(super) caller: Option<Arc<cust::stream::Stream>>,
    side: Mutex<Side>,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    multiprocessors: usize,
    shared_memory: usize,
    loaded: Mutex<Loaded>,
}

pub(super) fn failed(call: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |error| CudaError::Driver { call, message: error.to_string() }
}

/// GPUs that the driver sees; 0 without a driver.
#[must_use]
pub fn device_count() -> usize {
    // SAFETY: opens and closes libcuda; nothing else happens.
    if !unsafe { sys::is_culib_present() } {
        return 0;
    }
    CudaContext::device_count().ok().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

/// The primary context of a GPU, with cudarc's event tracking off.
pub(super) fn primary_context(ordinal: usize) -> Result<Arc<CudaContext>, CudaError> {
    // SAFETY: opens and closes libcuda. cudarc would panic at its first call without it.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let found = device_count();
    if ordinal >= found {
        return Err(CudaError::NoDevice { wanted: ordinal, found });
    }
    let context = CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"))?;
    // SAFETY: no slice of cudarc's exists in this context, so nothing relies on its events.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}

impl Gpu {
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoDevice`], [`CudaError::Driver`].
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let context = primary_context(ordinal)?;
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        Self::with_stream(context, stream)
    }

    pub(super) fn with_stream(context: Arc<CudaContext>, stream: Arc<CudaStream>) -> Result<Self, CudaError> {
        let attribute = |which| context.attribute(which).map_err(failed("cuDeviceGetAttribute"));
        let count = attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared =
            attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let multiprocessors = usize::try_from(count).unwrap_or(1);
        let shared_memory = usize::try_from(shared).unwrap_or(0);
        Ok(Self {
            #[cfg(feature = "cust")]
            caller: None,
            side: Mutex::default(),
            context,
            stream,
            multiprocessors,
            shared_memory,
            loaded: Mutex::default(),
        })
    }

    /// The stream that launches go to.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The device's name, as the driver gives it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn device_name(&self) -> Result<String, CudaError> {
        self.context.name().map_err(failed("cuDeviceGetName"))
    }

    pub(super) fn bind(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    /// At least `streams` streams and `events` events, of this GPU alone.
    pub(super) fn side(&self, streams: usize, events: usize) -> Result<MutexGuard<'_, Side>, CudaError> {
        let mut side = self.side.lock().unwrap_or_else(PoisonError::into_inner);
        while side.streams.len() < streams {
            side.streams.push(self.context.new_stream().map_err(failed("cuStreamCreate"))?);
        }
        while side.events.len() < events {
            side.events.push(self.event()?);
        }
        Ok(side)
    }

    pub(super) fn event(&self) -> Result<CudaEvent, CudaError> {
        self.context.new_event(None).map_err(failed("cuEventCreate"))
    }

    /// The loaded function of a launch, with permission for its shared memory.
    pub(super) fn prepared(&self, launch: &Launch) -> Result<Function, CudaError> {
        let function = self.function(launch)?;
        if launch.shared > PLAIN_SHARED {
            self.allow_shared(function, launch.shared)?;
        }
        Ok(function)
    }

    /// # Safety
    /// As [`Backend::launch`], and the stream is of this context.
    pub(super) unsafe fn launch_on(
        &self,
        launch: &Launch,
        stream: &CudaStream,
        programmatic: bool,
    ) -> Result<(), CudaError> {
        if launch.is_empty() {
            return Ok(());
        }
        let function = self.prepared(launch)?;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(programmatic),
        };
        let mut params: [*mut c_void; 1] = [launch.params().cast_mut()];
        // SAFETY: the caller's: parameters that fit the kernel and valid addresses in them; configuration and attribute live
        // through the call.
        let launched = unsafe {
            sys::cuLaunchKernelEx(&raw const config, function.0, params.as_mut_ptr(), std::ptr::null_mut())
        };
        let named =
            |e: DriverError| CudaError::Driver { call: launch.kernel.symbol(), message: e.to_string() };
        launched.result().map_err(named)
    }

    fn function(&self, launch: &Launch) -> Result<Function, CudaError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.functions.get(&launch.symbol()) {
            return Ok(*function);
        }
        let module = match loaded.modules.get(&launch.file()) {
            Some(module) => *module,
            None => load(launch)?,
        };
        loaded.modules.insert(launch.file(), module);
        let name = CString::new(launch.symbol().as_ref()).unwrap_or_default();
        // SAFETY: the module is loaded and never unloaded.
        let function = unsafe { result::module::get_function(module.0, name) };
        let function = Function(function.map_err(failed("cuModuleGetFunction"))?);
        loaded.functions.insert(launch.symbol(), function);
        Ok(function)
    }

    fn allow_shared(&self, function: Function, bytes: u32) -> Result<(), CudaError> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        unsafe { result::function::set_function_attribute(function.0, attribute, bytes) }
            .map_err(failed("cuFuncSetAttribute"))
    }
}

fn load(launch: &Launch) -> Result<Module, CudaError> {
    let bytes = fatbin(&launch.file()).ok_or(CudaError::NoKernel { kernel: launch.kernel.symbol() })?;
    // The driver wants 64-byte alignment, which embedded bytes lack; it copies what it needs.
    let mut aligned: Vec<[u64; 8]> = vec![[0; 8]; bytes.len().div_ceil(64) + 1];
    let words: &mut [u8] = bytemuck::cast_slice_mut(&mut aligned);
    let start = words.as_ptr().align_offset(64);
    words[start..start + bytes.len()].copy_from_slice(bytes);
    // SAFETY: a whole fatbin, as nvcc wrote it.
    let module = unsafe { result::module::load_data(words[start..].as_ptr().cast()) };
    module.map(Module).map_err(failed("cuModuleLoadData"))
}

impl Backend for Gpu {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        self.bind()?;
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(failed("cuMemAlloc"))?;
        usage::took(bytes);
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        usage::gave(bytes);
        // An error here has nobody to go to; the next call on the context reports it.
        if self.bind().is_ok() {
            // SAFETY: the caller's: an allocation, freed once; the driver waits for work that uses it.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    unsafe fn clear(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's range.
        let cleared = unsafe { result::memset_d8_async(address, 0, bytes, self.stream.cu_stream()) };
        cleared.map_err(failed("cuMemsetD8Async"))
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.bind()?;
        // On our stream: a copy of pageable memory outside it may return before its last bytes have arrived, and nothing
        // orders a non-blocking stream after it.
        // SAFETY: the caller's; `from` is not given back before the copy is done.
        let copied = unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) };
        copied.map_err(failed("cuMemcpyHtoDAsync"))?;
        self.synchronize()
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.synchronize()?;
        // SAFETY: the caller's.
        unsafe { result::memcpy_dtoh_sync(to, from) }.map_err(failed("cuMemcpyDtoH"))
    }

    fn staging(&self, bytes: usize) -> Result<Box<dyn Staging>, CudaError> {
        Ok(Box::new(Pinned::new(&self.context, bytes)?))
    }

    unsafe fn start_upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's.
        let copied = unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) };
        copied.map_err(failed("cuMemcpyHtoDAsync"))
    }

    unsafe fn start_download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's.
        let copied = unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) };
        copied.map_err(failed("cuMemcpyDtoHAsync"))
    }

    fn fence(&self) -> Result<Box<dyn Fence>, CudaError> {
        let timed = sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
        let event = self.context.new_event(Some(timed)).map_err(failed("cuEventCreate"))?;
        event.record(&self.stream).map_err(failed("cuEventRecord"))?;
        Ok(Box::new(Recorded(event)))
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's; the stream is this GPU's.
        unsafe { self.launch_on(launch, &self.stream, false) }
    }

    unsafe fn issue(&self, script: &Script) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.issue_script(script) }
    }

    unsafe fn capture(self: Arc<Self>, script: Script) -> Result<Box<dyn Capture>, CudaError> {
        // SAFETY: the caller's.
        unsafe { self.capture_script(script) }
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))
    }
}
