//! Checkpoints.
mod config;
pub use config::ModelConfig;
