//! The oracle: every operation in f64, written as its definition reads, and the slowest executor of whole steps.
//!
//! It judges the CPU and the CUDA path, so it shares nothing with them but the number formats (`crate::format`) and the
//! facts that define an operation (`crate::ops`). Values are read from memory in their own type, computed in f64 and
//! rounded once when stored: bf16 from f32, to nearest even. Choices that an operation makes in f32 (top-k, experts,
//! rounding to FP8 and FP4) are made on the f32 nearest to the f64 result. Nothing here is fast, and nothing that serves
//! calls it.

mod attention;
mod compress;
mod embed;
mod experts;
mod hyper;
mod index_logits;
mod index_query;
mod index_select;
mod index_store;
mod io;
mod linear;
mod math;
mod query;
mod rmsnorm;
mod rope_store;
mod router;
mod rows;
mod sample;
mod topk;
mod weights;

use io::Io;
pub use weights::Weights;

use crate::ops::{Dtype, Op};
use crate::step::{Graph, Memory, Node, OperandError, Operands, Plan, Resident};

/// Why a node could not be executed. Each of these means that the graph or the weights are wrong, not the inputs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ExecError {
    #[error(transparent)]
    Operand(#[from] OperandError),
    #[error("{op}: weight {operand} is not registered, or not in the form that the operation reads")]
    MissingWeight { op: &'static str, operand: &'static str },
    #[error("{op}: {operand} has {found} elements, expected {expected}")]
    Length { op: &'static str, operand: &'static str, expected: usize, found: usize },
    #[error("{op}: {operand} is {found:?}, expected {expected}")]
    Dtype { op: &'static str, operand: &'static str, expected: &'static str, found: Dtype },
}

/// Executes one node.
///
/// # Errors
/// [`ExecError`] if an operand is missing or has another length or type than the operation's dimensions say.
pub fn run(graph: &Graph, node: &Node, operands: Operands<'_>, weights: &Weights) -> Result<(), ExecError> {
    let io = &mut Io::new(graph, node, operands, weights);
    match &node.op {
        Op::Embed(op) => embed::run(op, io),
        Op::HyperPre(op) => hyper::pre(op, io),
        Op::HyperPost(op) => hyper::post(op, io),
        Op::HyperHead(op) => hyper::head(op, io),
        Op::RmsNorm(op) => rmsnorm::run(op, io),
        Op::Linear(op) => linear::run(op, io),
        Op::Query(op) => query::run(op, io),
        Op::RopeStore(op) => rope_store::run(op, io),
        Op::Compress(op) => compress::run(op, io),
        Op::IndexStore(op) => index_store::run(op, io),
        Op::IndexQuery(op) => index_query::run(op, io),
        Op::IndexLogits(op) => index_logits::run(op, io),
        Op::TopK(op) => topk::run(op, io),
        Op::IndexSelect(op) => index_select::run(op, io),
        Op::Attention(op) => attention::run(op, io),
        Op::Router(op) => router::run(op, io),
        Op::ExpertsUp(op) => experts::up(op, io),
        Op::ExpertsDown(op) => experts::down(op, io),
        Op::Sample(op) => sample::run(op, io),
    }
}

/// Executes a whole step in append order.
///
/// # Errors
/// The first node's [`ExecError`].
pub fn run_step(
    graph: &Graph,
    plan: &Plan,
    memory: &mut Memory,
    resident: &mut Resident,
    weights: &Weights,
) -> Result<(), ExecError> {
    for node in &graph.nodes {
        let operands = Operands::new(graph, plan, node, memory, resident)?;
        run(graph, node, operands, weights)?;
    }
    Ok(())
}
