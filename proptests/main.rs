//! Property tests, a module per operation. Every case runs on every executor and is judged by the oracle; the oracle is
//! judged by cases computed by hand and by laws that it must keep.

mod support;

mod linear;
mod rmsnorm;
mod topk;
