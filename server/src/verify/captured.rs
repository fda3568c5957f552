//! The same step as a GPU captures it: read back from the driver and proved on the edges that it says it will keep.
//!
//! No memory is needed for that, so the full-size step can be captured on any GPU; nothing runs.

use serde::Serialize;

use super::check::Checked;
use super::target::Target;

/// One capture, as read back.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Captured {
    pub(super) pdl: bool,
    pub(super) nodes: usize,
    pub(super) edges: usize,
    /// Of the edges.
    pub(super) programmatic: usize,
    /// Conflicting pairs of accesses, all ordered.
    pub(super) pairs: usize,
    /// Argument words that are pointers, each in a region that its node declares.
    pub(super) pointers: usize,
    pub(super) fingerprint: String,
    /// Why it may not run; the counts are then 0.
    pub(super) refused: Option<String>,
}

/// Captures the step without and with programmatic launches.
///
/// # Errors
/// There is no such GPU.
#[cfg(feature = "cuda")]
pub(super) fn captures(target: &Target, checked: &Checked, ordinal: u32) -> anyhow::Result<Vec<Captured>> {
    use std::sync::Arc;

    use anyhow::Context;
    use flashlane::cuda::{Gpu, RunMode, read_back};

    let gpu = Gpu::open(ordinal as usize).with_context(|| format!("--device cuda:{ordinal}"))?;
    let gpu = Arc::new(gpu);
    let forked = target.schedule == super::Schedule::Forked;
    let one = |pdl| {
        let mode = RunMode { captured: true, forked, programmatic: pdl };
        let step = (&checked.case.unscheduled, &checked.case.plan);
        let stacks = target.weights.stacks();
        match read_back(&gpu, (&target.registry, &stacks), &target.layout, step, mode) {
            Ok(found) => Captured {
                pdl,
                nodes: found.proved.nodes,
                edges: found.proved.edges,
                programmatic: found.programmatic,
                pairs: found.proved.pairs,
                pointers: found.pointers,
                fingerprint: format!("{:016x}", found.fingerprint),
                refused: None,
            },
            Err(error) => Captured { refused: Some(error.to_string()), ..Captured::nothing(pdl) },
        }
    };
    Ok(vec![one(false), one(true)])
}

#[cfg(not(feature = "cuda"))]
pub(super) fn captures(_: &Target, _: &Checked, ordinal: u32) -> anyhow::Result<Vec<Captured>> {
    anyhow::bail!(
        "--device cuda:{ordinal}: this build is without CUDA; run tools/get-cuda.sh and build with --features cuda"
    )
}

impl Captured {
    #[cfg(feature = "cuda")]
    fn nothing(pdl: bool) -> Self {
        let (nodes, edges, programmatic, pairs, pointers) = (0, 0, 0, 0, 0);
        Self { pdl, nodes, edges, programmatic, pairs, pointers, fingerprint: String::new(), refused: None }
    }

    pub(super) fn words(&self) -> String {
        let how = if self.pdl { "with programmatic launches" } else { "with full edges" };
        match &self.refused {
            Some(why) => format!("{how}: {why}"),
            None => format!(
                "{how}: {} kernels and {} edges read back, {} of them programmatic; {} pairs ordered; {} pointers, all declared; fingerprint {}",
                self.nodes, self.edges, self.programmatic, self.pairs, self.pointers, self.fingerprint
            ),
        }
    }
}
