//! Benchmarks: a module per operation, `seal` for the inputs of a step, and `model` for whole requests.
//!
//! With feature `cuda` and a GPU the operations run there, at the sizes of DeepSeek-V4-Flash, timed by CUDA events: `gpu.rs`
//! says how, and `FLASHLANE_BENCH_JSON=FILE` writes what was found. Otherwise they run on the CPU path, with weights and
//! contexts so small that they measure arithmetic and overhead, not memory bandwidth. `-- --test` runs each once. An operation
//! is checked before it is timed: `check.rs`.
//!
//! `cargo bench -p flashlane -- model` measures tokens per second; `FLASHLANE_BENCH_MODEL=DIR` takes a checkpoint instead of
//! random weights in the shape of the built-in model.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up has nothing to measure"
)]

mod bench;
mod check;
mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod model;
mod operands;
#[cfg(feature = "cuda")]
mod report;
mod seal;
#[path = "../proptests/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the harness of the property tests, of which this is a part")]
mod support;

mod attention;
#[cfg(feature = "cuda")]
mod canary;
mod compress;
mod embed;
mod experts;
mod hyper;
mod index_logits;
mod index_query;
mod index_select;
mod index_store;
mod linear;
#[cfg(feature = "cuda")]
mod nvfp4;
mod query;
mod rmsnorm;
mod rope_store;
mod router;
mod sample;
mod topk;

use bench::{At, Bench};
use criterion::Criterion;

/// The operations, in the order of a layer.
const OPS: [fn(At) -> Vec<Bench>; 16] = [
    embed::benches,
    hyper::benches,
    rmsnorm::benches,
    linear::benches,
    query::benches,
    rope_store::benches,
    compress::benches,
    index_store::benches,
    index_query::benches,
    index_logits::benches,
    topk::benches,
    index_select::benches,
    attention::benches,
    router::benches,
    experts::benches,
    sample::benches,
];

fn main() {
    #[cfg(feature = "cuda")]
    if let Some(backend) = support::cuda::gpu() {
        return gpu::all(&backend);
    }
    let mut c = Criterion::default().configure_from_args();
    OPS.iter().for_each(|benches| cpu::all(&mut c, benches(At::Cpu)));
    seal::all(&mut c);
    model::all(&mut c);
    c.final_summary();
}
