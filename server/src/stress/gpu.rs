//! Stress on a GPU: the ways in which a step can run there, side by side, and known bugs forced to run.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;
use flashlane::engine::{RowLog, Steps};
use serde::Serialize;

use super::{Report, StressArgs, alone, compare, on_gpu, runtime, sessions, side_by_side, sized};
use crate::cli::{Device, ModelArgs, OnOff, Schedule};
use crate::engine::{self, Loaded};
use crate::sessions::{Local, Model, Script, Session};

#[derive(Args, Clone, Debug)]
pub struct GpuArgs {
    /// On a GPU: the sessions captured and eager, serial and forked, with and without --pdl, each against the same reference
    #[arg(long, conflicts_with_all = ["url", "mutant", "unsafe_run_mutant", "order"])]
    pub matrix: bool,
    /// With --matrix: ways that run at the same time, each in an engine of its own; with one at a time the report has the GPU's
    /// idle time between steps
    #[arg(long, value_name = "N", default_value_t = 1, requires = "matrix", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub ways_at_once: u8,
    /// On a GPU (--device cuda:N): keeps streams busy for so many microseconds, before the node that a mutant lets others
    /// overtake, or without a mutant before nodes drawn from --order-seed
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub delay_us: Option<u32>,
    /// On a GPU: how the sessions run that the others are compared with, alone and serially: captured, or eager
    #[arg(long, value_enum, value_name = "on|off", default_value_t = OnOff::On, hide_possible_values = true)]
    pub reference_graph: OnOff,
}

impl GpuArgs {
    /// The reference: one stream, no programmatic launches.
    pub(super) fn reference(&self, model: ModelArgs) -> ModelArgs {
        ModelArgs { graph: self.reference_graph, schedule: Schedule::Serial, pdl: OnOff::Off, ..model }
    }
}

/// How a GPU ran the steps of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ran {
    pub captured: bool,
    pub forked: bool,
    pub pdl: bool,
    pub delay_us: Option<u32>,
    pub reference_captured: bool,
}

impl Ran {
    pub(super) fn of(args: &StressArgs) -> Option<Self> {
        (args.url.is_none() && on_gpu(args)).then_some(Self {
            captured: args.model.graph == OnOff::On,
            forked: args.model.schedule == Schedule::Forked,
            pdl: args.model.pdl == OnOff::On,
            delay_us: args.gpu.delay_us,
            reference_captured: args.gpu.reference_graph == OnOff::On,
        })
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pick = |yes, a, b| if yes { a } else { b };
        let (how, lanes) = (pick(self.captured, "captured", "eager"), pick(self.forked, "forked", "serial"));
        write!(f, "{how} {lanes}{}", pick(self.pdl, " pdl", ""))?;
        self.delay_us.map_or(Ok(()), |us| write!(f, " delay={us}us"))
    }
}

/// A GPU that is named must not be replaced by the race simulator.
pub(super) fn check(args: &StressArgs) -> Result<()> {
    match args.model.device {
        Device::Cuda(ordinal) if !cfg!(feature = "cuda") => bail!(
            "--device cuda:{ordinal}: this build is without CUDA; run tools/get-cuda.sh and build with --features cuda"
        ),
        _ => Ok(()),
    }
}

/// Whether something unproved is to run on a GPU, which a person must name: `auto` keeps mutants in the race simulator.
pub(super) fn forces(args: &StressArgs) -> bool {
    let forced = args.unsafe_run_mutant.is_some() || args.gpu.delay_us.is_some();
    let chosen = cfg!(feature = "cuda") && matches!(args.model.device, Device::Cuda(_));
    chosen && forced && args.order.is_none()
}

/// The engine whose steps are forced to run.
#[cfg(feature = "cuda")]
pub(super) fn forced(args: &StressArgs, model: &ModelArgs) -> Result<Loaded> {
    let delay = args.gpu.delay_us.map(|us| (us, args.order_seed));
    engine::build_forced(model, flashlane::engine::Forced { mutant: args.unsafe_run_mutant, delay })
}

#[cfg(not(feature = "cuda"))]
pub(super) fn forced(_: &StressArgs, model: &ModelArgs) -> Result<Loaded> {
    engine::build(model)
}

/// Microseconds that the GPU had nothing to do between two steps, over all pairs of steps in a row.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    pub pairs: usize,
    pub p50_us: f32,
    pub p90_us: f32,
    pub p99_us: f32,
}

/// An engine, and what to ask for its GPU's idle time.
#[cfg(feature = "cuda")]
fn timed(model: &ModelArgs) -> Result<(Loaded, impl FnOnce() -> Option<Idle> + use<>)> {
    let log = flashlane::engine::IdleLog::default();
    let loaded = engine::build_timed(model, log.clone())?;
    let idle = move || {
        let all = log.sorted();
        let at = |percent: usize| all.get(all.len() * percent / 100).copied();
        Some(Idle { pairs: all.len(), p50_us: at(50)?, p90_us: at(90)?, p99_us: at(99)? })
    };
    Ok((loaded, idle))
}

#[cfg(not(feature = "cuda"))]
fn timed(model: &ModelArgs) -> Result<(Loaded, impl FnOnce() -> Option<Idle> + use<>)> {
    Ok((engine::build(model)?, || None))
}

/// Runs the sessions in every way and prints the reports; 1 if one has not passed.
pub(super) fn matrix(args: &StressArgs) -> Result<ExitCode> {
    args.check()?;
    ensure!(
        on_gpu(args),
        "--matrix compares ways to run on a GPU: give --device cuda:N, and build with --features cuda"
    );
    let scripts = args.scripts(args.sessions)?;
    let reference = alone(args, &scripts)?;
    let ways: Vec<StressArgs> = (0..8).map(|bits| way(args, bits)).collect();
    let mut reports = Vec::new();
    for some in ways.chunks(args.gpu.ways_at_once.into()) {
        reports.extend(side_by_side(some, |way| matrix_row(way, &scripts, &reference))?);
    }
    print(args, &reports)?;
    let failed = reports.iter().filter(|r| r.failure().is_some()).count();
    if failed > 0 {
        bail!("{failed} of {} ways to run gave other tokens than the reference", reports.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// One of the 8 ways to run a step.
fn way(args: &StressArgs, bits: u8) -> StressArgs {
    let on = |bit: u8| if bits & bit > 0 { OnOff::On } else { OnOff::Off };
    let schedule = if bits & 2 > 0 { Schedule::Forked } else { Schedule::Serial };
    let model = ModelArgs { graph: on(1), schedule, pdl: on(4), ..args.model.clone() };
    StressArgs { model, ..args.clone() }
}

fn matrix_row(args: &StressArgs, scripts: &[Script], reference: &[Session]) -> Result<Report> {
    let (loaded, idle) = timed(&sized(args, scripts, args.concurrency))?;
    let started = Instant::now();
    let model = Model::Local(Local::new(&loaded));
    let company = runtime()?.block_on(sessions(&model, scripts, args.limits(), "together"));
    let wall = started.elapsed();
    let comparison = compare(scripts, &company, reference, &RowLog::default());
    drop(loaded);
    let mut report = Report::new(args, scripts, company, Some((comparison, Steps::default())), wall);
    // Beside other engines the GPU's idle time would be theirs too.
    report.gpu_idle = idle().filter(|_| args.gpu.ways_at_once == 1);
    Ok(report)
}

fn print(args: &StressArgs, reports: &[Report]) -> Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, reports)?;
        writeln!(out)?;
        return Ok(());
    }
    for report in reports {
        report.write(&mut out)?;
    }
    Ok(())
}
