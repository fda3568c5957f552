//! `flashlane matrix`: every known bug and every fault, one after another, and which instrument sees it.
//!
//! Bugs run in the race simulator, in any order in place of overlapping streams; faults are put into the executor that
//! serves. Each run has the canary and the differential on and is compared token by token with its sessions run alone.

mod table;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser};
use flashlane::instrument::{Fault, FaultKind};
use flashlane::step::Mutant;

use crate::cli::{InstrumentArgs, ModelArgs};
use crate::stress::{self, Order, Report, StressArgs};
pub use table::{Case, Row, Table};

#[derive(Args, Clone, Debug)]
pub struct MatrixArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Sessions of each run
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub sessions: usize,
    /// Boxes that a session opens, a tool call each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: usize,
    /// Tokens of facts and filler in the system prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 300)]
    pub ctx: usize,
    /// Of the sessions
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Of the orders in which the bugs run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub order_seed: u64,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// The table as JSON
    #[arg(long)]
    pub json: bool,
}

/// How often the differential looks unless --diff-every says otherwise: often enough for a small run.
const EVERY: u64 = 4;
/// Bytes of the canary's budget likewise, in MiB.
const BUDGET: usize = 16;

/// Runs every case and prints the table; 1 if the true step shows anything, or a bug or fault shows in nothing.
///
/// # Errors
/// As [`run`].
pub fn command(args: &MatrixArgs) -> Result<ExitCode> {
    let mut out = io::stdout().lock();
    let table = if args.json {
        let table = run(args, |_| Ok(()))?;
        serde_json::to_writer_pretty(&mut out, &table)?;
        writeln!(out)?;
        table
    } else {
        // Each row as it comes: a run takes a while.
        Table::head(&mut out)?;
        let table = run(args, |row| row.write(&mut out))?;
        table.foot(&mut out)?;
        table
    };
    let failure = table.failure();
    if let Some(failure) = &failure {
        tracing::error!("{failure}");
    }
    Ok(if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs every case, and shows each as it comes.
///
/// # Errors
/// The model cannot be had, a flag makes no sense, or a row cannot be shown.
pub fn run(args: &MatrixArgs, mut show: impl FnMut(&Row) -> io::Result<()>) -> Result<Table> {
    let cases = std::iter::once(Case::True)
        .chain(Mutant::ALL.into_iter().map(Case::Mutant))
        .chain(FaultKind::ALL.into_iter().map(|kind| Case::Fault(Fault::new(kind))));
    let wanted = |case: &Case| args.only.as_ref().is_none_or(|text| case.name().contains(text.as_str()));
    let mut rows = Vec::new();
    for case in cases.filter(wanted) {
        let row = row(args, case)?;
        show(&row)?;
        rows.push(row);
    }
    Ok(Table { rows })
}

fn row(args: &MatrixArgs, case: Case) -> Result<Row> {
    let stress = stress_args(args, case)?;
    tracing::info!(case = case.name(), "running");
    let proof = match case {
        Case::Mutant(mutant) => {
            let refused =
                stress::run(&StressArgs { unsafe_run_mutant: None, mutant: Some(mutant), ..stress.clone() });
            refused.is_err().then(|| mutant.check().name())
        }
        _ => None,
    };
    let ran: Result<Report> = stress::run(&stress);
    match ran {
        Ok(report) => Ok(Row::new(case, proof, &report)),
        // A bug that this engine's loop has no place for is the proof's alone.
        Err(why) if matches!(case, Case::Mutant(_)) => Ok(Row::not_run(case, proof, format!("{why:#}"))),
        Err(why) => Err(why),
    }
}

#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    stress: StressArgs,
}

fn stress_args(args: &MatrixArgs, case: Case) -> Result<StressArgs> {
    let defaults = Defaults::try_parse_from(["stress"])?.stress;
    let on = &args.model.instruments;
    let instruments = InstrumentArgs {
        canary: on.canary.or(Some(BUDGET)),
        diff_every: on.diff_every.or(Some(EVERY)),
        inject: match case {
            Case::Fault(fault) => Some(fault),
            _ => None,
        },
    };
    let mutant = match case {
        Case::Mutant(mutant) => Some(mutant),
        _ => None,
    };
    Ok(StressArgs {
        model: ModelArgs { instruments, ..args.model.clone() },
        sessions: args.sessions,
        rounds: args.rounds,
        ctx: args.ctx,
        seed: args.seed,
        order_seed: args.order_seed,
        unsafe_run_mutant: mutant,
        order: (!matches!(case, Case::Fault(_))).then_some(Order::Any),
        concurrency: args.sessions,
        max_tokens: 96,
        ..defaults
    })
}
