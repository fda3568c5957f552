//! What the instruments have done and seen: counters for metrics, lines for the log, a summary at exit.

use std::fmt;

use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CanaryReport {
    /// Pools of the model, and those in which a changed bit was seen before the first step.
    pub pools: usize,
    pub certified: usize,
    /// Bytes hashed again after each step, at most one page more.
    pub budget: usize,
    /// Passes, one after each step.
    pub steps: u64,
    /// Pages that became full.
    pub sealed: u64,
    /// Full pages, and rows of tail pages, that were hashed again.
    pub pages: u64,
    pub rows: u64,
    pub bytes: u64,
    /// Under watch now.
    pub watched_bytes: usize,
    /// Steps within which a change is seen, by the bytes under watch and the budget: the most so far.
    pub stated_latency: u64,
    /// Most steps between two looks at the same rows.
    pub latency: u64,
    /// Full pages that were given back before the rotation came to them.
    pub released_unchecked: u64,
    pub hits: u64,
}

impl CanaryReport {
    /// Why it certifies nothing; `None`: what it has checked, it certifies.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        if self.certified < self.pools {
            Some(format!("a changed bit was seen in {} of {} pools only", self.certified, self.pools))
        } else if self.pages == 0 {
            Some(
                "no full page was ever hashed again: the contexts were too short or ended too soon"
                    .to_owned(),
            )
        } else {
            None
        }
    }
}

/// What the differential compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    Logits,
    Selected,
    Experts,
    Window,
    Rows,
    Index,
    State,
}

impl Quantity {
    pub const ALL: [Self; 7] =
        [Self::Logits, Self::Selected, Self::Experts, Self::Window, Self::Rows, Self::Index, Self::State];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Logits => "logits",
            Self::Selected => "selected",
            Self::Experts => "experts",
            Self::Window => "window",
            Self::Rows => "rows",
            Self::Index => "index",
            Self::State => "state",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DifferentialReport {
    /// A step in so many is run again.
    pub every: u64,
    /// Steps, and those that were run again.
    pub steps: u64,
    pub sampled: u64,
    /// Sampled steps in which anything differed.
    pub differing: u64,
    /// Sampled steps in which each quantity differed, in the order of [`Quantity::ALL`].
    pub by_quantity: [u64; Quantity::ALL.len()],
    /// Rows of logits compared; of them those whose best token differs; the largest difference.
    pub logits_rows: u64,
    pub argmax_dis: u64,
    pub max_abs: f32,
    /// Selected rows compared, and those that only one run selected.
    pub selected_rows: u64,
    pub topk_dis: u64,
    pub experts_dis: u64,
    /// Quantities in which a fault put into the second run was seen.
    pub certified: Vec<Quantity>,
    /// Quantities in which such a fault was not seen.
    pub blind: Vec<Quantity>,
}

impl DifferentialReport {
    /// Quantities that are not certified, with the reason.
    #[must_use]
    pub fn refusals(&self) -> Vec<(Quantity, &'static str)> {
        let why = |quantity: &Quantity| match quantity {
            _ if self.blind.contains(quantity) => "a fault put into it was not seen",
            _ if self.sampled == 0 => "no step was run again",
            Quantity::Selected => "every context run again was short enough for top-k to take all rows",
            Quantity::Logits => "no step run again sampled a token",
            Quantity::Rows | Quantity::Index => "no step run again stored such a row",
            _ => "the model has none, or no step run again had a place for the fault",
        };
        let open = Quantity::ALL.into_iter().filter(|q| !self.certified.contains(q));
        open.map(|q| (q, why(&q))).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InjectReport {
    pub spec: String,
    /// Items hit.
    pub injected: u64,
    /// Full pages with faults in them.
    pub pages: u64,
    /// Of those: told by the canary, given back before it came to them, not yet looked at.
    pub found_by_canary: u64,
    pub released: u64,
    pub pending: u64,
    /// Steps with a fault in them that were run again, and those that the comparison told.
    pub sampled_steps: u64,
    pub found_by_differential: u64,
}

/// Everything, as it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    pub canary: Option<CanaryReport>,
    pub differential: Option<DifferentialReport>,
    pub inject: Option<InjectReport>,
}

impl fmt::Display for CanaryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certified = self.refusal().map_or_else(|| "yes".to_owned(), |why| format!("no ({why})"));
        let Self {
            steps,
            sealed,
            pages,
            rows,
            bytes,
            latency,
            stated_latency,
            hits,
            budget,
            released_unchecked,
            ..
        } = self;
        write!(
            f,
            "canary hits={hits} steps={steps} sealed={sealed} pages_checked={pages} rows_checked={rows} bytes={bytes} \
             budget={budget} latency_steps={latency} stated_latency_steps={stated_latency} released_unchecked={released_unchecked} \
             certified={certified}"
        )
    }
}

impl fmt::Display for DifferentialReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { every, steps, sampled, differing, max_abs, argmax_dis, topk_dis, experts_dis, .. } = self;
        let names = |all: &[Quantity]| all.iter().map(|q| q.name()).collect::<Vec<_>>().join(",");
        write!(
            f,
            "diff every={every} steps={steps} sampled={sampled} differing={differing} max_abs={max_abs} \
             argmax_dis={argmax_dis}/{} topk_dis={topk_dis}/{} experts_dis={experts_dis} certified={}",
            self.logits_rows,
            self.selected_rows,
            if self.certified.is_empty() { "none".to_owned() } else { names(&self.certified) },
        )?;
        let refusals = self.refusals();
        let refusals = refusals.iter().map(|(quantity, why)| format!(" {} ({why})", quantity.name()));
        let refusals: Vec<String> = refusals.collect();
        if refusals.is_empty() {
            Ok(())
        } else {
            write!(f, " not_certified={}", refusals.join(",").trim_start())
        }
    }
}

impl fmt::Display for InjectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, injected, pages, found_by_canary, released, pending, .. } = self;
        write!(
            f,
            "inject spec={spec} injected={injected} pages={pages} canary_found={found_by_canary} released={released} \
             pending={pending} sampled_steps={} diff_found={}",
            self.sampled_steps, self.found_by_differential
        )
    }
}

impl Report {
    /// A line for each instrument, for the log at exit.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let lines = [
            self.canary.as_ref().map(ToString::to_string),
            self.differential.as_ref().map(ToString::to_string),
            self.inject.as_ref().map(ToString::to_string),
        ];
        lines.into_iter().flatten().collect()
    }
}
