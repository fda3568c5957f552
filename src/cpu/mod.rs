//! The serving path without a GPU: every operation in f32, vectorised, on all cores.
//!
//! What makes it fit to serve is promise 1 of the engine: the bits of a row depend on nothing but that row. Threads and tiles
//! split free axes only (rows, heads, output columns, experts); every reduced axis (`K`, the keys of a query) is walked in an
//! order that is a constant of the operation. So a request gets the same tokens alone or in company, on one thread or many,
//! with AVX-512 or without. Values in memory are bf16 or f32; sums are f32 and rounded once, when stored.
//!
//! One file per operation; [`simd`] has the instruction sets, `products` and `math` the inner loops, `weights` the packed weights, `serial`
//! the executor of whole steps. Number formats live in [`crate::format`].

pub mod any_order;
mod attention;
mod compress;
mod context;
mod embed;
mod experts;
mod hyper;
mod index_logits;
mod index_query;
mod index_select;
mod index_store;
mod knock_out;
mod linear;
mod math;
mod pages;
mod products;
mod query;
mod rmsnorm;
mod rope_store;
mod router;
mod rows;
mod sample;
pub mod serial;
pub mod simd;

mod topk;
mod weights;

pub use knock_out::KnockOut;
pub use weights::Weights;

use context::Context;

use crate::ops::{Dtype, Op};
use crate::step::{Graph, Node, OperandError, Operands};

/// Why a node cannot run. Each of these means that a graph, a plan or the weights do not fit together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ExecError {
    #[error(transparent)]
    Operand(#[from] OperandError),
    #[error("{op}: {operand} must have {expected} elements, found {found}")]
    Length { op: &'static str, operand: &'static str, expected: usize, found: usize },
    #[error("{op}: {operand} must be {expected:?}, found {found:?}")]
    Dtype { op: &'static str, operand: &'static str, expected: Dtype, found: Dtype },
    #[error("{op}: {operand} must be a weight of {} x {}, found {} x {}", expected.0, expected.1, found.0, found.1)]
    Shape { op: &'static str, operand: &'static str, expected: (usize, usize), found: (usize, usize) },
    #[error("{op}: {operand} is not a weight that was loaded, or of the wrong kind")]
    MissingWeight { op: &'static str, operand: &'static str },
    #[error("{op}: {dimension} must be {expected}, found {found}")]
    Dimension { op: &'static str, dimension: &'static str, expected: &'static str, found: usize },
}

/// Runs one node.
///
/// # Errors
/// [`ExecError`]; nothing useful is in the outputs then.
pub fn run(graph: &Graph, node: &Node, operands: Operands<'_>, weights: &Weights) -> Result<(), ExecError> {
    let mut context = Context::new(graph, node, operands, weights);
    let context = &mut context;
    match &node.op {
        Op::Embed(op) => embed::run(op, context),
        Op::HyperPre(op) => hyper::pre(op, context),
        Op::HyperPost(op) => hyper::post(op, context),
        Op::HyperHead(op) => hyper::head(op, context),
        Op::RmsNorm(op) => rmsnorm::run(op, context),
        Op::Linear(op) => linear::run(op, context),
        Op::Query(op) => query::run(op, context),
        Op::RopeStore(op) => rope_store::run(op, context),
        Op::Compress(op) => compress::run(op, context),
        Op::IndexStore(op) => index_store::run(op, context),
        Op::IndexQuery(op) => index_query::run(op, context),
        Op::IndexLogits(op) => index_logits::run(op, context),
        Op::TopK(op) => topk::run(op, context),
        Op::IndexSelect(op) => index_select::run(op, context),
        Op::Attention(op) => attention::run(op, context),
        Op::Router(op) => router::run(op, context),
        Op::ExpertsUp(op) => experts::up(op, context),
        Op::ExpertsDown(op) => experts::down(op, context),
        Op::Sample(op) => sample::run(op, context),
    }
}
