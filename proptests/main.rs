//! Property tests, a module per operation, and one each for plan, proof and the like. Every case of an operation runs on
//! every executor and is judged by the oracle; the oracle is judged by cases computed by hand and by laws that it must keep.
//! Names like `t01` are those of public bug reports about other engines, kept as inputs.

mod support;

mod attention;
mod compress;
mod embed;
mod experts;
mod hyper;
mod index_logits;
mod index_query;
mod index_store;
mod linear;
mod query;
mod rmsnorm;
mod rope_store;
mod router;
mod sample;
mod topk;

mod model;

#[cfg(feature = "emulator")]
mod emulator;
#[cfg(feature = "cuda")]
mod nvfp4;

mod hazards;
mod plan;
mod proof;
mod random_graph;
