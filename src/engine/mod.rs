//! The engine: requests in, tokens out.
//!
//! One OS thread owns the device and the steps. Requests join and leave between steps; prefill runs in blocks of 256 tokens
//! on a fixed grid of positions, so which block computes a token depends on its request alone. Blocks alternate with decode
//! steps: a decode step waits for one block at most, and every other block goes to the shortest prompt. The host launches a
//! step before it has read the last, whose tokens the device holds. A step is built, planned and *proved* before the engine
//! starts; an unproved one is refused.

pub mod api;
mod bucket;
mod device;
#[cfg(feature = "cuda")]
mod gpu;
mod handle;
pub mod inputs;
mod local;
mod logprobs;
mod request;
mod runner;
mod scheduler;
mod simulated;

pub use api::*;
pub use bucket::{BucketError, DRIVE, DecodeBuckets, Prepared, RING, Unprovable, prepare, prove_steps};
pub use device::{Device, HostDevice, Wanted};
#[cfg(feature = "cuda")]
pub use gpu::{Forced, GpuConfig, IdleLog};
pub use handle::{Engine, EngineConfig, StartError};
pub use local::LocalError;
pub use simulated::{Row, RowLog, Simulation, SimulationError, Steps};
