//! Instruments that catch what a proof cannot: a device that does not do what was proved, a kernel that writes elsewhere
//! than it declares, memory that changes by itself.
//!
//! - The [`Canary`] hashes cache rows and looks later whether they are what they were.
//! - The [`Differential`] runs a step again, serial and beside the first run, and compares everything.
//! - The [`Injector`] puts faults in, so that the other two can be seen to find them.
//!
//! None of them is part of a step. Pages that they need are kept free in every engine, so graphs, plans, pools and addresses
//! are the same with any of them on or off: an instrument that moves memory can hide what it looks for.

mod canary;
mod compare;
mod differential;
mod fault;
mod hash;
mod history;
mod inject;
mod jobs;
mod pools;
mod probe;
mod report;
mod second_run;
mod self_test;
mod shadow;
mod watch;

pub use canary::{Canary, DEFAULT_BUDGET, Hit, Stored};
pub use compare::{LogitsDiff, argmax, logits, missing};
pub use differential::{Difference, Differences, Differential, Sample};
pub use fault::{Fault, FaultError, FaultKind, SPEC};
pub use hash::{WORD, hash, mix};
pub use history::{History, REMEMBERED};
pub use inject::{Injector, exchange_scores, replace_indices};
pub use pools::{Pool, Pools, Role};
pub use probe::{Edit, Piece, Probe, Span, Store, Tamper, run_in_pieces};
pub use report::{CanaryReport, DifferentialReport, InjectReport, Quantity, Report};
pub use shadow::{Reserve, Shadow, ShadowError};
pub use watch::{Launch, Log, SampledRows, UnderWay, Watch};

pub(crate) use probe::{edit_host, within};
pub(crate) use watch::NO_PROBE;

/// Which instruments an engine has. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Instruments {
    /// Bytes that the canary hashes again after each step; `None`: no canary.
    pub canary: Option<usize>,
    /// The differential runs a step in so many again; `None`: none.
    pub diff_every: Option<u64>,
    pub inject: Option<Fault>,
}

impl Instruments {
    #[must_use]
    pub const fn any(&self) -> bool {
        self.canary.is_some() || self.diff_every.is_some() || self.inject.is_some()
    }
}
