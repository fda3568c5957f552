//! An engine on this machine's CPU from a checkpoint: the whole way from tensors to a running thread.

use super::bucket::Unprovable;
use super::device::HostDevice;
use super::handle::{Engine, EngineConfig, StartError};
use crate::checkpoint::Checkpoint;
use crate::cpu;
use crate::model::{CacheLayout, LoadError, ModelWeights, load};

/// Why an engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the engine does not start: {0}")]
    Unprovable(#[from] Unprovable),
    #[error(transparent)]
    Start(#[from] StartError),
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Uncertified(#[from] crate::cuda::Uncertified),
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::cuda::CudaError),
}

impl Engine {
    /// Loads the weights, builds, plans and proves every step, and starts.
    ///
    /// # Errors
    /// [`LocalError`], in sentences.
    pub fn on_cpu(checkpoint: &Checkpoint, config: EngineConfig) -> Result<Self, LocalError> {
        config.check()?;
        let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
        let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
        let steps = config.prepare(&weights, &layout)?;
        let loaded: cpu::Weights = load(&registry, checkpoint)?.into_iter().collect();
        let device = HostDevice::new(&layout, steps, loaded, cpu::serial::run_step);
        Ok(Self::start(config, layout, Box::new(device))?)
    }
}
