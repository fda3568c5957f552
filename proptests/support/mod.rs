//! The harness of the property tests: a case is one node with its memory, run by every executor and judged by the oracle.
//!
//! `case` builds it from a description, `run` executes it under two poisons and checks that declared means declared,
//! `judge` compares what came out, `draw` makes the numbers, `pages` the pools. An executor plugs in at
//! [`executors`](run::executors).

mod case;
mod draw;
mod judge;
mod pages;
mod run;

pub(crate) use case::{Case, Stored};
pub(crate) use draw::{Draw, config};
pub(crate) use judge::{EPS, bf16_step, eps_of};
pub(crate) use pages::{Book, rope_table};
pub(crate) use run::{Found, Runs};

pub(crate) use flashlane::ops::{Dtype, Tokens, Value};
