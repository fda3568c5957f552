//! `flashlane verify`: builds the steps of a model, plans their memory and proves them free of hazards, with no GPU and no
//! weights; or shows the two operations that nothing orders.
//!
//! `target` is what is proved, `check` proves it, `report` is what was found as data, `text` for people, `picture` as a
//! drawing. It runs no model, and it proves the steps as they are built: what a GPU captured is another program.

mod captured;
mod check;
mod picture;
mod report;
mod target;
mod text;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use flashlane::step::Mutant;
use indicatif::ProgressBar;

use crate::cli::{Device, IndexK};
use check::Checked;
pub use report::Caught;
use report::Report;
use target::Target;

const HELP: &str = "\
A step is the graph of kernels that one decode or prefill runs. Its values share an arena, and its lanes may run at the same \
time. Proved means: in every order that the edges allow, each read finds its value, also from one step to the next. \
Exit status: 0 proved, 1 hazards, 2 usage.

Examples:
  flashlane verify --flash
      The full-size decode step of DeepSeek-V4-Flash, in seconds.
  flashlane verify --mutant free-by-host-order --svg bug.svg
      The bug that made others switch stream overlap off: refused, with a picture.";

/// Arguments of `flashlane verify`.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP)]
pub struct VerifyArgs {
    /// Checkpoint directory, of which only config.json is read; without it, the built-in model
    #[arg(long, value_name = "DIR", conflicts_with_all = ["flash", "pro"])]
    pub model: Option<PathBuf>,
    /// DeepSeek-V4-Flash at full size, no weights needed
    #[arg(long, conflicts_with = "pro")]
    pub flash: bool,
    /// DeepSeek-V4-Pro at full size, no weights needed
    #[arg(long)]
    pub pro: bool,
    /// Requests that run at once: rows of the largest decode step [default: 8; with --flash or --pro, 32]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Report the prefill step instead of the largest decode step
    #[arg(long)]
    pub prefill: bool,
    /// Longest sequence that page tables have room for [default: 8192; with --flash or --pro, 131072]
    #[arg(long, value_name = "N")]
    pub max_positions: Option<usize>,
    /// serial: one lane after the other, as on one stream; forked: lanes run side by side. The plan is the same
    #[arg(long, value_enum, default_value_t = Schedule::Forked)]
    pub schedule: Schedule,
    /// Number format of the indexer's keys
    #[arg(long, value_enum, default_value_t = IndexK::Bf16)]
    pub index_k: IndexK,
    /// Put a known bug into the step first
    #[arg(long, value_name = "SLUG")]
    pub mutant: Option<Mutant>,
    /// Put every known bug into the step, one at a time, and list which check finds it
    #[arg(long, conflicts_with_all = ["mutant", "svg", "dot"])]
    pub list_mutants: bool,
    /// Draw the step: lanes, joins, the arena, hazards in red
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the step as a Graphviz graph
    #[arg(long, value_name = "FILE")]
    pub dot: Option<PathBuf>,
    /// Also capture the step on this GPU (cuda:N), read the graph back from the driver and prove it on its real edges
    #[arg(long, value_name = "DEVICE", conflicts_with = "list_mutants")]
    pub device: Option<Device>,
    /// The report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    Serial,
    Forked,
}

/// The exit status of wrong usage; 1 means hazards and nothing else.
const USAGE: u8 = 2;

/// Runs the command; what is wrong with its arguments is said on standard error.
///
/// # Errors
/// The output failed.
pub fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let found = if args.list_mutants { list(args) } else { verify(args) };
    Ok(found.unwrap_or_else(|error| {
        if crate::commands::reader_gone(&error) {
            return ExitCode::SUCCESS;
        }
        eprintln!("flashlane: {error:#}");
        ExitCode::from(USAGE)
    }))
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let target = Target::open(args)?;
    let wait = progress(args, "proving every step and every pair of steps");
    let checked = Checked::new(&target, args.mutant)?;
    wait.finish_and_clear();
    for (path, draw) in [(&args.svg, picture::svg as fn(&Checked) -> String), (&args.dot, picture::dot)] {
        if let Some(path) = path {
            let written = std::fs::write(path, draw(&checked));
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    let mut report = Report::new(&target, &checked);
    if let Some(Device::Cuda(ordinal)) = args.device {
        report.captured = captured::captures(&target, &checked, ordinal)?;
        report.proved &= report.captured.iter().all(|c| c.refused.is_none());
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        text::write(&report, &mut out, text::Paint::of_terminal())?;
    }
    Ok(ExitCode::from(u8::from(!report.proved)))
}

/// Puts each mutant into the step and runs all checks.
///
/// # Errors
/// What is wrong with the arguments.
pub(crate) fn mutants(args: &VerifyArgs) -> anyhow::Result<Vec<Caught>> {
    let target = Target::open(args)?;
    let caught = |m| Ok(Caught::new(m, &Report::new(&target, &Checked::new(&target, Some(m))?)));
    Mutant::ALL.into_iter().map(caught).collect()
}

/// Captures the step with each mutant in it on a GPU, with programmatic launches, and reads it back: why it is refused there.
///
/// # Errors
/// What is wrong with the arguments; there is no such GPU.
pub(crate) fn refused(args: &VerifyArgs, ordinal: u32) -> anyhow::Result<Vec<Option<String>>> {
    let target = Target::open(args)?;
    let refused = |mutant| {
        let captures = captured::captures(&target, &Checked::new(&target, Some(mutant))?, ordinal)?;
        Ok(captures.into_iter().rfind(|capture| capture.pdl).and_then(|capture| capture.refused))
    };
    Mutant::ALL.into_iter().map(refused).collect()
}

fn list(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let wait = progress(args, "trying every mutant");
    let found = mutants(args)?;
    wait.finish_and_clear();
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &found)?;
        writeln!(out)?;
    } else {
        text::table(&found, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn progress(args: &VerifyArgs, what: &'static str) -> ProgressBar {
    if args.json || !io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}
