//! The serial executor: a step's nodes in append order, which is a legal schedule, over the planned bytes.

use super::{ExecError, Weights, run};
use crate::step::{Graph, Memory, Operands, Plan, Resident};

/// Runs a whole step. The host has written its inputs to `memory` and reads its outputs there.
///
/// # Errors
/// The first node's [`ExecError`]; the step's outputs are then worth nothing.
pub fn run_step(
    graph: &Graph,
    plan: &Plan,
    memory: &mut Memory,
    resident: &mut Resident,
    weights: &Weights,
) -> Result<(), ExecError> {
    // Inside the pool, so that an operation which shares its work wakes only the other threads.
    let mut result = Ok(());
    rayon::scope(|_| {
        result = graph.nodes.iter().try_for_each(|node| {
            let operands = Operands::new(graph, plan, node, memory, resident)?;
            run(graph, node, operands, weights)
        });
    });
    result
}
