//! The model as a builder of steps. It knows the architecture and nothing of devices: every forward pass, prefill or
//! decode, is a step graph that this module appends to.

mod attention;
mod layout;
mod load;
mod moe;
mod registry;
mod step;
mod weights;

pub use layout::{CacheLayout, CacheSize, LayerCache};
pub use load::{LoadError, Loaded, load};
pub use registry::{Entry, Registry, Source};
pub use step::{ModelStep, StepIo, StepShape, build_step, layer_scope};
pub use weights::{AttentionWeights, IndexerWeights, LayerWeights, ModelWeights, MoeWeights, Routing};
