//! An engine on this machine's CPU from a checkpoint: the whole way from tensors to a running thread.

use super::bucket::Unprovable;
use super::device::HostDevice;
use super::handle::{Engine, EngineConfig, StartError};
use crate::checkpoint::Checkpoint;
use crate::cpu::{self, KnockOut};
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
    #[error("layer {layer} cannot be knocked out: expected a layer with compressed rows ({expected:?})")]
    KnockOut { layer: usize, expected: Vec<usize> },
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
        Self::on_cpu_without(checkpoint, config, &[])
    }

    /// As [`Engine::on_cpu`], with layers knocked out.
    ///
    /// # Errors
    /// [`LocalError`]; among others, a layer has no compressed rows to lose.
    pub fn on_cpu_without(
        checkpoint: &Checkpoint,
        config: EngineConfig,
        layers: &[KnockOut],
    ) -> Result<Self, LocalError> {
        config.check()?;
        let ratios = &checkpoint.config.compress_ratios;
        if let Some(KnockOut { layer, .. }) =
            layers.iter().find(|l| ratios.get(l.layer).is_none_or(|r| *r == 0))
        {
            let expected = (0..ratios.len()).filter(|&l| ratios[l] != 0).collect();
            return Err(LocalError::KnockOut { layer: *layer, expected });
        }
        let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
        let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
        let steps = config.prepare(&weights, &layout)?;
        type Host = HostDevice<cpu::Weights, cpu::ExecError>;
        let bytes = Host::bytes(&layout, &steps);
        // Asked for and given back: what follows would not fail in words.
        if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
            return Err(StartError::Memory { bytes }.into());
        }
        let mut loaded: cpu::Weights = load(&registry, checkpoint)?.into_iter().collect();
        layers.iter().for_each(|layer| loaded.knock_out(*layer));
        let device = Host::new(&layout, steps, loaded, cpu::serial::run_step);
        Ok(Self::start(config, layout, Box::new(device))?)
    }
}
