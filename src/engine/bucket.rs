//! Buckets: the fixed shapes that steps are built for, each proved before it may run.

use std::fmt;
use std::str::FromStr;

use crate::model::{CacheLayout, ModelStep, ModelWeights, StepShape, build_step};
use crate::step::{
    BuildError, Drive, Hazard, Layout, LayoutError, Numerics, Plan, Program, Proved, Replay, prove,
    prove_loop,
};

/// Most sizes of decode steps.
const MOST_BUCKETS: usize = 32;

/// Rows of decode steps, ascending; a batch runs in the smallest that holds it. Tokens do not depend on them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DecodeBuckets {
    rows: [usize; MOST_BUCKETS],
    len: usize,
}

impl DecodeBuckets {
    /// # Errors
    /// [`BucketError`].
    pub fn new(sizes: &[usize]) -> Result<Self, BucketError> {
        if let Some(at) = sizes.iter().position(|&size| size == 0) {
            return Err(BucketError::Zero { at });
        }
        if let Some(pair) = sizes.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(BucketError::Order { size: pair[1], before: pair[0] });
        }
        if !(1..=MOST_BUCKETS).contains(&sizes.len()) {
            return Err(BucketError::Count(sizes.len()));
        }
        let mut rows = [0; MOST_BUCKETS];
        rows[..sizes.len()].copy_from_slice(sizes);
        Ok(Self { rows, len: sizes.len() })
    }

    #[must_use]
    pub fn rows(&self) -> &[usize] {
        &self.rows[..self.len]
    }
}

impl Default for DecodeBuckets {
    fn default() -> Self {
        let sizes = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64];
        let mut rows = [0; MOST_BUCKETS];
        rows[..sizes.len()].copy_from_slice(&sizes);
        Self { rows, len: sizes.len() }
    }
}

impl fmt::Debug for DecodeBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().fmt(f)
    }
}

/// As they are parsed: `1,2,4,8`.
impl fmt::Display for DecodeBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.rows().iter().map(ToString::to_string).collect();
        f.write_str(&sizes.join(","))
    }
}

impl FromStr for DecodeBuckets {
    type Err = BucketError;

    fn from_str(text: &str) -> Result<Self, BucketError> {
        let size = |part: &str| part.trim().parse().map_err(|_| BucketError::NotANumber(part.to_owned()));
        Self::new(&text.split(',').map(size).collect::<Result<Vec<_>, _>>()?)
    }
}

/// Why sizes of decode steps are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    #[error("'{0}' is not a number of rows; expected sizes with commas between them, such as 1,2,4,8")]
    NotANumber(String),
    #[error("size {at} is 0; a decode step has at least 1 row")]
    Zero { at: usize },
    #[error("{size} comes after {before}; expected ascending sizes, each once")]
    Order { size: usize, before: usize },
    #[error("{0} sizes; expected 1 to {MOST_BUCKETS}")]
    Count(usize),
}

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
pub(super) fn decode_shapes(
    buckets: &DecodeBuckets,
    max_rows: usize,
    max_positions: usize,
) -> Vec<StepShape> {
    let smaller = buckets.rows().iter().copied().filter(|&rows| rows < max_rows);
    smaller.chain([max_rows]).map(|rows| StepShape::decode(rows, max_positions)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_bad_ones_named() {
        let read = |text: &str| text.parse::<DecodeBuckets>();
        assert_eq!(read("1, 3,7").unwrap().rows(), [1, 3, 7]);
        assert_eq!(read(&DecodeBuckets::default().to_string()), Ok(DecodeBuckets::default()));
        assert_eq!(read("1,x"), Err(BucketError::NotANumber("x".to_owned())));
        assert_eq!(read(""), Err(BucketError::NotANumber(String::new())));
        assert_eq!(read("1,0"), Err(BucketError::Zero { at: 1 }));
        assert_eq!(read("4,4"), Err(BucketError::Order { size: 4, before: 4 }));
        assert_eq!(DecodeBuckets::new(&[]), Err(BucketError::Count(0)));
        let many: Vec<usize> = (1..=33).collect();
        assert_eq!(DecodeBuckets::new(&many), Err(BucketError::Count(33)));
    }

    /// Sizes beyond the requests at once are left out, and what holds them all is there.
    #[test]
    fn the_last_shape_holds_every_request() {
        let rows = |sizes: &[usize], max| -> Vec<usize> {
            let buckets = DecodeBuckets::new(sizes).unwrap();
            decode_shapes(&buckets, max, 256).iter().map(|shape| shape.requests).collect()
        };
        assert_eq!(rows(&[2, 5, 9], 8), [2, 5, 8]);
        assert_eq!(rows(&[2, 5], 5), [2, 5]);
        assert_eq!(rows(&[64], 3), [3]);
    }
}
