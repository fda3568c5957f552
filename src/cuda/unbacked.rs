//! A GPU whose memory is not there: addresses for everything and bytes for nothing, so that a step of any size can be
//! captured and read back on the real driver. Nothing runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    Backend, Capture, Certificate, CudaError, DeviceResident, DeviceStep, DeviceWeights, Executor, Gpu,
    Launch, Options, RunMode, Script, Uncertified,
};
use crate::model::{CacheLayout, Registry};
use crate::step::{Graph, Memory, Plan, WeightId};

/// A step of any size, captured on a GPU over memory that is not there, read back and judged.
///
/// # Errors
/// [`Uncertified`].
pub fn read_back(
    gpu: &Arc<Gpu>,
    (registry, experts): (&Registry, &HashMap<WeightId, usize>),
    layout: &CacheLayout,
    (graph, plan): (&Graph, &Plan),
    mode: RunMode,
) -> Result<Certificate, Uncertified> {
    let backend: Arc<dyn Backend> = Arc::new(Unbacked::new(Arc::clone(gpu)));
    let weights = DeviceWeights::random(&backend, registry, experts, 0)?;
    let resident = DeviceResident::zeroed(&backend, layout)?;
    let step = DeviceStep::upload(&backend, graph, &Memory::new(graph, plan))?;
    let executor = Executor { backend, weights, options: Options::default() };
    executor.read_back(graph, plan, (&step, &resident), mode)
}

/// Where addresses begin: as high as a driver's, so that no pair of dimensions in an argument looks like one.
const BASE: u64 = 0x7e00_0000_0000;

/// Captures on a GPU; allocates nothing.
#[derive(Debug)]
pub struct Unbacked {
    gpu: Arc<Gpu>,
    next: AtomicU64,
}

impl Unbacked {
    #[must_use]
    pub fn new(gpu: Arc<Gpu>) -> Self {
        Self { gpu, next: AtomicU64::new(BASE) }
    }
}

impl Backend for Unbacked {
    fn name(&self) -> &'static str {
        "unbacked"
    }

    fn multiprocessors(&self) -> usize {
        self.gpu.multiprocessors()
    }

    fn shared_memory(&self) -> usize {
        self.gpu.shared_memory()
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        Ok(self.next.fetch_add(bytes.next_multiple_of(256) as u64, Ordering::Relaxed))
    }

    unsafe fn free(&self, _: u64, _: usize) {}

    unsafe fn clear(&self, _: u64, _: usize) -> Result<(), CudaError> {
        Ok(())
    }

    unsafe fn upload(&self, _: u64, _: &[u8]) -> Result<(), CudaError> {
        Ok(())
    }

    unsafe fn download(&self, _: u64, _: &mut [u8]) -> Result<(), CudaError> {
        Err(CudaError::Unsupported { op: "download", what: "memory that is not there" })
    }

    unsafe fn launch(&self, _: &Launch) -> Result<(), CudaError> {
        Ok(())
    }

    unsafe fn capture(self: Arc<Self>, script: Script) -> Result<Box<dyn Capture>, CudaError> {
        // SAFETY: the caller's. Were the graph ever replayed, its addresses would have to be valid, which none is.
        let capture = unsafe { Arc::clone(&self.gpu).capture(script)? };
        Ok(Box::new(Unrunnable(capture)))
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        Ok(())
    }
}

/// A capture that can be read and never run.
#[derive(Debug)]
struct Unrunnable(Box<dyn Capture>);

impl Capture for Unrunnable {
    fn read(&self) -> Result<super::Reading, CudaError> {
        self.0.read()
    }

    fn instantiate(self: Box<Self>) -> Result<Box<dyn super::Replay>, CudaError> {
        Err(CudaError::Unsupported { op: "instantiate", what: "a graph over memory that is not there" })
    }
}
