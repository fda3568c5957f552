//! Buckets: the fixed shapes that steps are built for, each proved before it may run.

use crate::model::{CacheLayout, ModelStep, ModelWeights, StepShape, build_step};
use crate::step::{BuildError, Hazard, Layout, LayoutError, Numerics, Plan, Program, Proved, prove};

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

/// Why a step may not run.
#[derive(Debug, thiserror::Error)]
pub enum Unprovable {
    #[error("the step cannot be built: {0}")]
    Build(#[from] BuildError),
    #[error("the step is not free of hazards ({} found): {}", .0.len(), .0.first().map_or_else(String::new, ToString::to_string))]
    Hazards(Vec<Hazard>),
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

/// The decode shapes of an engine with up to `max_rows` requests, ascending.
pub(super) fn decode_shapes(max_rows: usize, max_positions: usize) -> Vec<StepShape> {
    let smaller = DECODE_BUCKETS.into_iter().filter(|&rows| rows < max_rows);
    smaller.chain([max_rows]).map(|rows| StepShape::decode(rows, max_positions)).collect()
}
