//! Property tests, a module per operation, and one each for plan, proof and the like. Every case of an operation runs on
//! every executor and is judged by the oracle; the oracle is judged by cases computed by hand and by laws that it must keep.
//! Names like `t01` are those of public bug reports about other engines, kept as inputs.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod support;

mod attention;
mod compress;
mod embed;
mod experts;
mod hyper;
mod index_logits;
mod index_query;
mod index_select;
mod index_store;
mod linear;
mod query;
mod rmsnorm;
mod rope_store;
mod router;
mod sample;
mod topk;

#[cfg(feature = "emulator")]
mod emulator;
#[cfg(feature = "cuda")]
mod nvfp4;
#[cfg(feature = "cuda")]
mod sanitize;

mod ahead;
mod any_order;
#[cfg(feature = "cuda")]
mod certify;
mod checkpoint;
mod company;
mod draw;
mod engine;
mod footprint;
#[cfg(feature = "cuda")]
mod gpu_beside;
#[cfg(feature = "cuda")]
mod gpu_engine;
#[cfg(feature = "cuda")]
mod gpu_events;
#[cfg(feature = "cuda")]
mod gpu_hazards;
mod hazards;
mod inputs;
mod instruments;
mod model;
mod model_step;
mod mutants;
mod plan;
mod proof;
mod race;
mod random_graph;
mod replayed;
mod step;
mod three_c4;
mod world;
