#![doc = "flashlane: DeepSeek-V4-Flash on a step graph that is proved free of cross-stream hazards."]

pub mod cache;
pub mod checkpoint;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod engine;
pub mod format;
pub mod model;
pub mod ops;
pub mod reference;
pub mod step;
