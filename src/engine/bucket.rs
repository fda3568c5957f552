//! Buckets: the fixed shapes that steps are built for, each proved before it may run.

use crate::model::{CacheLayout, ModelStep, ModelWeights, StepShape, build_step};
use crate::step::{
    BuildError, Drive, Hazard, Layout, LayoutError, Numerics, Plan, Program, Proved, Replay, prove,
    prove_loop,
};

/// Rows of decode steps; a batch runs in the smallest that holds it.
pub const DECODE_BUCKETS: [usize; 10] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64];

/// A step that may run: built, placed and proved.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub step: ModelStep,
    pub plan: Plan,
    pub proved: Proved,
    /// What its inputs must keep in each replay.
    pub layout: Layout,
}

/// Slots for inputs and outputs: a step's are written and read while another's are the device's.
pub const RING: usize = 2;

/// How [`Engine`](super::Engine) drives its steps: it writes the inputs of one while the last runs, after it has read the
/// outputs of the one before that.
pub const DRIVE: Drive =
    Drive { ring: RING, ahead: RING, frees_after_step: true, canary_in_order: true, early_settled: false };

/// Why a step may not run.
#[derive(Debug, thiserror::Error)]
pub enum Unprovable {
    #[error("the step cannot be built: {0}")]
    Build(#[from] BuildError),
    #[error("the step is not free of hazards ({} found): {}", .0.len(), .0.first().map_or_else(String::new, ToString::to_string))]
    Hazards(Vec<Hazard>),
    #[error("steps in a row are not free of hazards ({} found): {}", .0.len(), .0.first().map_or_else(String::new, ToString::to_string))]
    Loop(Vec<Hazard>),
    #[error("the step's tables do not fit together: {0}")]
    Layout(#[from] LayoutError),
}

/// Builds, plans and proves the step of one shape.
///
/// # Errors
/// [`Unprovable`].
pub fn prepare(
    weights: &ModelWeights,
    layout: &CacheLayout,
    numerics: Numerics,
    shape: StepShape,
) -> Result<Prepared, Unprovable> {
    let step = build_step(weights, layout, numerics, shape)?;
    let plan = Plan::shared(&step.graph);
    let proved = prove(&Program::of(&step.graph, &plan)).map_err(Unprovable::Hazards)?;
    let layout = Layout::of(&step.graph)?;
    Ok(Prepared { step, plan, proved, layout })
}

/// Proves the engine's loop over every ordered pair of its steps.
///
/// # Errors
/// [`Unprovable::Loop`].
pub fn prove_steps(steps: &[Prepared]) -> Result<Proved, Unprovable> {
    let names: Vec<String> = steps.iter().map(|s| s.step.shape.to_string()).collect();
    let replays: Vec<Replay<'_>> = steps
        .iter()
        .zip(&names)
        .map(|(s, name)| Replay { name, graph: &s.step.graph, plan: &s.plan, live: &[] })
        .collect();
    prove_loop(&replays, DRIVE).map_err(Unprovable::Loop)
}

/// The decode shapes of an engine with up to `max_rows` requests, ascending.
pub(super) fn decode_shapes(max_rows: usize, max_positions: usize) -> Vec<StepShape> {
    let smaller = DECODE_BUCKETS.into_iter().filter(|&rows| rows < max_rows);
    smaller.chain([max_rows]).map(|rows| StepShape::decode(rows, max_positions)).collect()
}
