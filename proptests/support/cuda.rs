//! The CUDA path as an executor: under the emulator with a few schedules, and on a GPU where there is one.
//!
//! `FLASHLANE_GPU=required` makes a missing GPU a failure; otherwise its absence is printed once and the GPU is left out.

use std::sync::{Arc, OnceLock};

use flashlane::cuda::{
    Backend, CudaError, DeviceResident, DeviceStep, DeviceWeight, DeviceWeights, Gpu, IndexReader,
    MatrixFormat, Options, kernels_built,
};
use flashlane::ops::Op;
use flashlane::step::{Memory, Resident};

use super::case::{Case, Stored, TestWeight};
use super::run::Executor;

/// The executors that this build and this machine have.
pub(crate) fn executors() -> Vec<Box<dyn Executor>> {
    let mut all: Vec<Box<dyn Executor>> = Vec::new();
    #[cfg(feature = "emulator")]
    {
        let emulator = |seed| Arc::new(flashlane::cuda::Emulator::new(seed));
        let small = flashlane::cuda::Emulator::with_shared_memory(2, 99 << 10);
        all.push(Box::new(Cuda::new("emulator, seed 1", emulator(1))));
        all.push(Box::new(Cuda::new("emulator, seed 2, 99 KiB of shared memory", Arc::new(small))));
        all.push(Box::new(Cuda::new("emulator, simple reader", emulator(3)).simple_reader()));
    }
    if let Some(gpu) = gpu() {
        all.push(Box::new(Cuda::new("gpu", Arc::clone(&gpu))));
        all.push(Box::new(Cuda::new("gpu, simple reader", gpu).simple_reader()));
    }
    all
}

/// The devices that this build and this machine have, the emulated one included.
pub(crate) fn devices() -> Vec<Arc<dyn Backend>> {
    #[cfg(feature = "emulator")]
    let emulated = Some(Arc::new(flashlane::cuda::Emulator::new(1)) as Arc<dyn Backend>);
    #[cfg(not(feature = "emulator"))]
    let emulated = None;
    emulated.into_iter().chain(gpu()).collect()
}

/// The GPU, opened once.
pub(crate) fn gpu() -> Option<Arc<dyn Backend>> {
    static GPU: OnceLock<Option<Arc<dyn Backend>>> = OnceLock::new();
    GPU.get_or_init(|| {
        let required = std::env::var("FLASHLANE_GPU").is_ok_and(|v| v == "required");
        let opened =
            if kernels_built() { Gpu::open(0) } else { Err(CudaError::NoKernel { kernel: "at all" }) };
        match opened {
            Ok(gpu) => Some(Arc::new(gpu) as Arc<dyn Backend>),
            Err(error) if required => panic!("FLASHLANE_GPU=required: {error}"),
            Err(error) => {
                eprintln!("skipped on the GPU: {error}");
                None
            }
        }
    })
    .clone()
}

/// The GPU, or the emulator.
pub(crate) fn device() -> Option<Arc<dyn Backend>> {
    #[cfg(feature = "emulator")]
    let other = || Some(Arc::new(flashlane::cuda::Emulator::new(1)) as Arc<dyn Backend>);
    #[cfg(not(feature = "emulator"))]
    let other = || None;
    gpu().or_else(other)
}

/// The exit status for it, as `tools/gpu-check` knows it.
const DEVICE_FAULT: i32 = 70;

pub(crate) struct Cuda {
    name: &'static str,
    backend: Arc<dyn Backend>,
    options: Options,
}

impl Cuda {
    pub(crate) fn new(name: &'static str, backend: Arc<dyn Backend>) -> Self {
        Self { name, backend, options: Options::default() }
    }

    /// The same with the simple reader of index keys; it then takes nothing but what reads them.
    pub(crate) fn simple_reader(self) -> Self {
        Self { options: Options { index_reader: IndexReader::Simple }, ..self }
    }

    /// What the driver reports ends the process: after a fault nothing runs in this context any more, so every later case would
    /// fail, and shrinking would name a case that did nothing wrong.
    fn words(&self, error: &CudaError) -> String {
        if self.backend.name() == "gpu" && matches!(error, CudaError::Driver { .. }) {
            eprintln!("device fault: {error}");
            std::process::exit(DEVICE_FAULT);
        }
        error.to_string()
    }

    pub(crate) fn executor(&self, case: &Case) -> Result<flashlane::cuda::Executor, CudaError> {
        executor(&self.backend, case, self.options)
    }

    /// The launches, over copies of the case's memory.
    fn prepare(&self, case: &Case) -> Result<(), CudaError> {
        let (memory, resident) = case.memory(0);
        let step = DeviceStep::upload(&self.backend, &case.graph, &memory)?;
        let device = DeviceResident::upload(&self.backend, &resident)?;
        self.executor(case)?.launches(&case.graph, &case.plan, &step, &device).map(drop)
    }
}

/// An executor with the weights of a case.
pub(crate) fn executor(
    backend: &Arc<dyn Backend>,
    case: &Case,
    options: Options,
) -> Result<flashlane::cuda::Executor, CudaError> {
    let mut weights = DeviceWeights::default();
    for (id, weight) in &case.weights {
        weights.insert(*id, upload(backend, weight)?);
    }
    Ok(flashlane::cuda::Executor { backend: Arc::clone(backend), weights, options })
}

/// A weight in the form that kernels read: FP8 block scales as f32, NVFP4's second level once a matrix of the stack (as
/// often as there are rows, which is enough for any stack).
fn upload(backend: &Arc<dyn Backend>, weight: &TestWeight) -> Result<DeviceWeight, CudaError> {
    match &weight.stored {
        Stored::F32(data) => DeviceWeight::plain(backend, MatrixFormat::F32, bytemuck::cast_slice(data)),
        Stored::Bf16(data) => {
            let bits: Vec<half::bf16> = data.iter().map(|&v| half::bf16::from_f32(v)).collect();
            DeviceWeight::plain(backend, MatrixFormat::Bf16, bytemuck::cast_slice(&bits))
        }
        Stored::Table(data) => DeviceWeight::plain(backend, MatrixFormat::Table, bytemuck::cast_slice(data)),
        Stored::Fp8 { codes, scales } => {
            let scales: Vec<f32> = scales.iter().map(|&s| flashlane::format::ue8m0::decode(s)).collect();
            DeviceWeight::scaled(backend, MatrixFormat::Fp8Block, codes, bytemuck::cast_slice(&scales), &[])
        }
        Stored::NvFp4 { codes, scales, scale2 } => {
            DeviceWeight::scaled(backend, MatrixFormat::Nvfp4, codes, scales, &vec![*scale2; weight.rows])
        }
        Stored::MxFp4 { codes, scales } => {
            DeviceWeight::scaled(backend, MatrixFormat::Mxfp4, codes, scales, &[])
        }
    }
}

impl Executor for Cuda {
    fn name(&self) -> &'static str {
        self.name
    }

    fn takes(&self, case: &Case) -> bool {
        let concerned = match case.graph.nodes[0].op {
            Op::IndexLogits(_) | Op::IndexSelect(_) => self.options.index_reader == IndexReader::Simple,
            _ => false,
        };
        let alike = self.options == Options::default() || concerned;
        alike && !self.prepare(case).is_err_and(|e| e.is_unsupported())
    }

    fn run(&self, case: &Case, memory: &mut Memory, resident: &mut Resident) -> Result<(), String> {
        let mut run = || self.executor(case)?.run_on_host_memory(&case.graph, &case.plan, memory, resident);
        run().map_err(|error| self.words(&error))
    }
}
