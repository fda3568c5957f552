//! The harness of the property tests: a case is one node with its memory, run by every executor and judged by the oracle.
//!
//! `case` builds it from a description, `run` executes it under two poisons and checks that declared means declared,
//! `judge` compares what came out, `bounds` carries error bounds through the steps that operations share, `draw` makes the
//! numbers, `pages` the pools. An executor plugs in at [`executors`](run::executors).

mod bounds;
mod case;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod draw;
mod judge;
mod pages;
mod run;
pub(crate) mod tampered;

pub(crate) use bounds::{Off, hadamard_off, index_step, kv_step, norm_off, rope_off};
pub(crate) use case::{Case, Stored};
pub(crate) use draw::{Draw, config};
pub(crate) use judge::{EPS, eps_of};
pub(crate) use pages::{Book, index_bytes, index_row, kv_bytes, kv_row, rope_table};
pub(crate) use run::{Found, Runs};

pub(crate) use flashlane::ops::{Dtype, Value};

/// The repository: `FLASHLANE_ROOT` where the tests run on another machine than they were built on.
pub(crate) fn root() -> std::path::PathBuf {
    std::env::var_os("FLASHLANE_ROOT").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
}

/// Runs a case once, with no judging.
#[cfg(feature = "emulator")]
pub(crate) fn run_once(
    executor: &dyn run::Executor,
    case: &Case,
    memory: &mut flashlane::step::Memory,
    resident: &mut flashlane::step::Resident,
) {
    executor.run(case, memory, resident).unwrap();
}
