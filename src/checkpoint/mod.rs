//! Checkpoints: a directory (or bytes compiled into the binary) becomes the model's tensors, or a sentence that says why not.
//!
//! ```text
//! config.json ─► config ─┐
//! *.safetensors ─► map ─► safetensors ─► names ─► resolve (against inventory) ─► matrices, vectors, tables
//! ```
//!
//! Weights stay where they are: a [`Matrix`] points into the memory map and is cheap to clone; only vectors (norms, biases)
//! are decoded. The format is decided per tensor, by what lies beside it, never by the configuration. Everything the
//! architecture needs is checked before anything is handed out: a checkpoint is whole or an error that lists what is wrong.
//!
//! What this module does not do: move weights to a device, or run anything.

mod config;
mod error;
mod inspect;
mod inventory;
mod map;
mod names;
pub mod presets;
mod quantize;
mod resolve;
mod safetensors;
#[doc(hidden)]
pub mod synthetic;
mod weights;

use std::path::Path;

pub use config::{LayerKind, ModelConfig};
pub use error::{CheckpointError, TensorProblem};
pub use inspect::{LayerReport, Nvfp4Report, Report};
pub use inventory::{Role, Spec, specs};
pub use map::{Span, read_file};
pub use names::Skip;
pub use quantize::{DenseFormat, ExpertFormat, Progress, QuantizeOptions, quantize};
pub use weights::{IdTable, Matrix, Part, Row, Vector, WeightFormat};

/// A loaded checkpoint: every tensor of the architecture is present and has its shape.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub config: ModelConfig,
    /// Every tensor of the architecture, in the order of the inventory.
    pub items: Vec<Item>,
    /// Tensors that belong to parts of the model that are not served.
    pub skipped: Vec<Skipped>,
    /// `config.json` as it was found.
    pub config_json: serde_json::Map<String, serde_json::Value>,
}

/// One tensor of the inventory.
#[derive(Clone, Debug)]
pub struct Item {
    pub spec: Spec,
    pub tensor: Tensor,
}

/// What an inventory entry resolved to.
#[derive(Clone, Debug)]
pub enum Tensor {
    Matrix(Matrix),
    Vector(Vector),
    Ids(IdTable),
}

/// Tensors that were passed over, by the part of the model they belong to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Skipped {
    pub part: Skip,
    pub tensors: usize,
    pub bytes: u64,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "skipped {} tensors ({} bytes) of {}", self.tensors, self.bytes, self.part)
    }
}

impl Checkpoint {
    /// Opens a checkpoint directory: `config.json` and `model.safetensors`, or shards named by
    /// `model.safetensors.index.json`. Files are memory-mapped; scales are read once, to refuse NaN.
    ///
    /// # Errors
    /// [`CheckpointError`], in sentences.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        match std::fs::metadata(dir) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let name = dir.display().to_string();
                return Err(CheckpointError::file(&name, "expected a checkpoint directory, found a file"));
            }
            Err(error) => return Err(CheckpointError::io(dir, error)),
        }
        let config = map::read_file(&dir.join("config.json"))?;
        Self::build(&config, safetensors::open_dir(dir)?)
    }

    /// A checkpoint held in memory: the bytes of `config.json` and of one safetensors file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(config: &[u8], tensors: impl Into<Span>) -> Result<Self, CheckpointError> {
        Self::build(config, safetensors::read(&tensors.into(), "model.safetensors")?)
    }

    fn build(config: &[u8], tensors: Vec<safetensors::RawTensor>) -> Result<Self, CheckpointError> {
        let (config, config_json) = ModelConfig::from_json(config)?;
        let (items, skipped) = resolve::resolve(&config, tensors)?;
        for line in &skipped {
            tracing::info!("{line}");
        }
        Ok(Self { config, items, skipped, config_json })
    }
}
