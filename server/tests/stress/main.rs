//! Stress and evaluation on the built-in model, at reduced counts: the true step never differs, a mutant does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may panic.

mod command;
mod eval;
mod http;
mod in_process;
mod instruments;
mod mutants;
mod soak;
