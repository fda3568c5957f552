//! Property tests, a module per operation, and one each for plan, proof and the like. Every case of an operation runs on
//! every executor and is judged by the oracle; the oracle is judged by cases computed by hand and by laws that it must keep.

mod support;

mod linear;
mod rmsnorm;
mod topk;

mod hazards;
mod plan;
mod proof;
mod random_graph;
