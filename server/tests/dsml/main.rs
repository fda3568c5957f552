//! The output parser: hostile outputs by name, and the properties that must hold for all outputs.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may panic.

mod notation;
mod properties;
mod table;
