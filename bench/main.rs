//! Benchmarks of the CPU path: a module per operation with a cost worth watching, `seal` for the inputs
//! of a step, and `model` for whole requests.
//!
//! `cargo bench -p flashlane -- model` measures tokens per second; `FLASHLANE_BENCH_MODEL=DIR` takes a checkpoint instead of
//! random weights in the shape of the built-in model. Weights and contexts are small, so these are measures of arithmetic and
//! overhead, not of memory bandwidth.

#![allow(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to measure")]

mod attention;
mod experts;
mod linear;
mod model;
mod node;
mod seal;

use criterion::{criterion_group, criterion_main};

criterion_group!(benches, linear::all, attention::all, experts::all, seal::all, model::all);
criterion_main!(benches);
