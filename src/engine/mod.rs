//! The engine: requests in, tokens out. One OS thread owns the device and the steps.

pub mod api;

pub use api::*;
