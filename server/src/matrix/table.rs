//! The table: a case per row, an instrument per column.

use std::io::{self, Write};

use flashlane::instrument::{CanaryReport, DifferentialReport, Fault, FaultKind, InjectReport};
use flashlane::step::{Check, Mutant};
use serde::Serialize;

use crate::stress::Report;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Case {
    /// The step as it was proved.
    True,
    Mutant(Mutant),
    Fault(Fault),
}

impl Case {
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::True => "none".to_owned(),
            Self::Mutant(mutant) => mutant.slug().to_owned(),
            Self::Fault(fault) => format!("inject {}", fault.kind.name()),
        }
    }

    /// Why the canary does not see it.
    fn canary_cannot(self) -> &'static str {
        match self {
            Self::True => "",
            Self::Mutant(_) => {
                "no stored row changes: what is stored is wrong, in the right place, and taken for true"
            }
            Self::Fault(fault) => match fault.kind {
                FaultKind::Row => "an owner's own wrong row is what it takes for true",
                _ => "no stored row changes; rows that follow from it are stored by their owners",
            },
        }
    }

    /// Why the differential does not see it.
    fn differential_cannot(self) -> &'static str {
        match self {
            Self::True => "",
            Self::Mutant(mutant) if mutant == Mutant::SerialClobber || mutant.check() != Check::Order => {
                "the second run is of the same graph, plan and arguments, and as wrong"
            }
            Self::Mutant(_) => "nothing went wrong in a step that was run again",
            Self::Fault(fault) if fault.kind.inside() => "no fault fell into a step that was run again",
            Self::Fault(_) => "both runs read the page as it is now",
        }
    }
}

/// One case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub case: String,
    /// The check of the proof that refuses it.
    pub proof: Option<&'static str>,
    /// Why it did not run; the counts are then zero.
    pub not_run: Option<String>,
    pub differing_tokens: usize,
    pub compared_tokens: usize,
    pub canary: Option<CanaryReport>,
    pub differential: Option<DifferentialReport>,
    pub inject: Option<InjectReport>,
    /// What did not see it, and why.
    pub cannot: Vec<String>,
    #[serde(skip)]
    is_true: bool,
}

impl Row {
    pub(super) fn new(case: Case, proof: Option<&'static str>, report: &Report) -> Self {
        let seen = report.instruments.as_ref().map(|i| &i.report);
        let comparison = report.comparison.as_ref();
        let mut row = Self {
            case: case.name(),
            proof,
            not_run: None,
            differing_tokens: comparison.map_or(0, |c| c.differing_tokens),
            compared_tokens: comparison.map_or(0, |c| c.compared_tokens),
            canary: seen.and_then(|r| r.canary.clone()),
            differential: seen.and_then(|r| r.differential.clone()),
            inject: seen.and_then(|r| r.inject.clone()),
            cannot: Vec::new(),
            is_true: case == Case::True,
        };
        if !row.is_true {
            row.explain(case);
        }
        row
    }

    pub(super) fn not_run(case: Case, proof: Option<&'static str>, why: String) -> Self {
        Self {
            case: case.name(),
            proof,
            not_run: Some(why),
            differing_tokens: 0,
            compared_tokens: 0,
            canary: None,
            differential: None,
            inject: None,
            cannot: Vec::new(),
            is_true: false,
        }
    }

    fn explain(&mut self, case: Case) {
        if self.proof.is_none() {
            self.cannot.push("proof: it judges the step, and the step is right".to_owned());
        }
        if self.differing_tokens == 0 {
            self.cannot.push("tokens: none came out different".to_owned());
        }
        if self.hits() == 0 {
            self.cannot.push(format!("canary: {}", case.canary_cannot()));
        }
        if self.differing() == 0 {
            self.cannot.push(format!("differential: {}", case.differential_cannot()));
        }
    }

    fn hits(&self) -> u64 {
        self.canary.as_ref().map_or(0, |canary| canary.hits)
    }

    fn differing(&self) -> u64 {
        self.differential.as_ref().map_or(0, |diff| diff.differing)
    }

    fn flagged(&self) -> bool {
        self.proof.is_some() || self.differing_tokens > 0 || self.hits() > 0 || self.differing() > 0
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub rows: Vec<Row>,
}

impl Table {
    /// Why the table is not as it should be.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let wrong = |row: &&Row| row.flagged() == row.is_true;
        let row = self.rows.iter().find(wrong)?;
        Some(if row.is_true {
            "the true step was flagged".to_owned()
        } else {
            format!("nothing flags {}", row.case)
        })
    }

    /// The head of the table, as Markdown; [`Row::write`] goes on.
    ///
    /// # Errors
    /// The output failed.
    pub fn head(out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "| bug or fault | proof | tokens that differ | canary hits | differential: steps | does not see it |\n\
             |---|---|---:|---:|---:|---|"
        )
    }

    /// What the instruments certify, below the table.
    ///
    /// # Errors
    /// The output failed.
    pub fn foot(&self, out: &mut impl Write) -> io::Result<()> {
        let shown = self.rows.iter().find(|row| row.is_true);
        shown.iter().flat_map(|row| row.certificates()).try_for_each(|line| writeln!(out, "\n`{line}`"))
    }
}

impl Row {
    /// As a line of Markdown.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let case = if self.is_true { "none".to_owned() } else { format!("`{}`", self.case) };
        let proof = self.proof.map_or("no", |check| check);
        if let Some(why) = &self.not_run {
            return writeln!(out, "| {case} | {proof} | not run | not run | not run | {why} |");
        }
        let diff = self.differential.as_ref().map_or((0, 0), |d| (d.differing, d.sampled));
        writeln!(
            out,
            "| {case} | {} | {} of {} | {} | {} of {} | {} |",
            if self.is_true { "proved" } else { proof },
            self.differing_tokens,
            self.compared_tokens,
            self.hits(),
            diff.0,
            diff.1,
            self.cannot.join("; "),
        )
    }

    /// What the instruments certify, from the run in which nothing is wrong.
    fn certificates(&self) -> Vec<String> {
        let canary = self.canary.as_ref().map(ToString::to_string);
        canary.into_iter().chain(self.differential.as_ref().map(ToString::to_string)).collect()
    }
}
