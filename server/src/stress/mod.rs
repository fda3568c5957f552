//! `flashlane stress`: many agentic sessions at once, and what comes back broken.
//!
//! In process every token is compared with the same session run alone, which a step that is free of races must reproduce
//! bit by bit; over HTTP only the answers can be judged. With a mutant it shows what the proof is there to prevent:
//! `mutants` is the table of all of them, `sweep` the same experiment on the true step.

mod alone;
mod child;
mod compare;
mod forced;
mod gpu;
mod instruments;
mod mutants;
mod report;
mod soak;
mod sweep;
mod usage;

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use flashlane::cpu::any_order;
use flashlane::engine::{Engine, RowLog, Simulation};
use flashlane::step::Mutant;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::cli::{Device, ModelArgs};
use crate::engine::{self, Loaded};
use crate::sessions::{Limits, Local, Model, Remote, Script, Session, play_all};
use crate::tasks::items::{Kind, Shape};
use crate::tasks::lexicon::Lexicon;
use alone::{alone, side_by_side};
pub use child::{Ended, Watched};
pub use compare::{Against, Comparison, Place, compare};
pub use forced::{ForcedRun, ForcedTable};
pub use instruments::Instrumented;
pub use mutants::{Ran, Table, found_table};
pub use report::Report;
pub use soak::{Sample, Soak, Usage};
pub use sweep::{Cell, Sweep};

/// Rows of the largest step that is worth building.
const MAX_ROWS: usize = 64;

const HELP: &str = "\
Exit status: in process 1 if any token differs from that of the same session alone; with --url 1 if more sessions are corrupt \
than --max-rate allows; with --mutants 1 if no check finds one of them, or the true step errs; with --soak 1 if something is \
not flat.

Examples:
  flashlane stress
      40 sessions in company, every token compared.
  flashlane stress --sessions 8 --unsafe-run-mutant free-by-host-order --order any
      The bug that made others switch stream overlap off, forced to run.
  flashlane stress --mutants --sessions 8 --concurrency 8 --order-seed 7
      Every known bug in every order, as a table in Markdown.
  flashlane stress --sweep --concurrency 8 --order-seed 7
      The true step in 1,000 orders for each format of index keys and number of sessions at once.
  flashlane stress --soak 3600 --concurrency 64 --json
      An hour under the load of 64 clients: pools, memory and descriptors over time, and whether they stay flat.";

#[derive(Args, Clone, Debug)]
#[command(after_help = HELP)]
pub struct StressArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Sessions to run
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub sessions: usize,
    /// Boxes that a session opens, a tool call each
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Tokens of facts and filler in the system prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 300)]
    pub ctx: usize,
    /// Longest answer
    #[arg(long, value_name = "TOKENS", default_value_t = 1800)]
    pub max_tokens: usize,
    /// Sessions at once; in process, up to 64 of them share a step whatever --max-num-seqs says
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub concurrency: usize,
    /// Seconds that one answer may take
    #[arg(long, value_name = "SECONDS", default_value_t = 240)]
    pub timeout: u64,
    /// Name of the run in its report
    #[arg(long, value_name = "NAME", default_value = "stress")]
    pub tag: String,
    /// Of the sessions; a session depends on the seed and its number alone
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Server to ask instead of an engine in this process: http://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Name of the model at --url
    #[arg(long, value_name = "NAME", default_value = "flashlane-tiny")]
    pub model_name: String,
    /// Key for --url
    #[arg(long, env = "FLASHLANE_STRESS_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// With --url: exit 1 if a larger share of the sessions is corrupt
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub max_rate: f64,
    /// Puts a known bug into the steps, which are then refused; `verify --list-mutants` has the names
    #[arg(long, value_name = "SLUG", conflicts_with_all = ["unsafe_run_mutant", "url"])]
    pub mutant: Option<Mutant>,
    /// Runs the steps with a known bug in them, unproved, in the race simulator or on a GPU that is named
    #[arg(long, value_name = "SLUG", conflicts_with = "url")]
    pub unsafe_run_mutant: Option<Mutant>,
    /// Order of a step's nodes in the race simulator [default: the executor that serves; any for a mutant and --sweep]
    #[arg(long, value_enum, conflicts_with = "url")]
    pub order: Option<Order>,
    /// Of the orders; each step draws another. With --concurrency 1 the run repeats bit by bit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub order_seed: u64,
    /// Share of the steps that draw an order, in percent; the others run as appended
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub order_percent: u8,
    /// Fills dead bytes with NaN also for a mutant: what reads them fails its request. Without it a mutant reads what lies
    /// there, as in production, and may get by
    #[arg(long)]
    pub poison: bool,
    /// Runs every known bug in every order, or in every way of a GPU that is named, and prints what finds it and what it does
    #[arg(long, conflicts_with_all = ["mutant", "unsafe_run_mutant", "url", "order", "sweep"])]
    pub mutants: bool,
    /// Runs the true step with each format of index keys and at 1, 2, 4 and so on up to --concurrency sessions at once, as many
    /// sessions as --steps takes; prints a table in Markdown
    #[arg(long, conflicts_with_all = ["mutant", "unsafe_run_mutant", "url", "index_k"])]
    pub sweep: bool,
    /// With --sweep: steps in each of its rows, at least; each in an order of its own [default: 1000]
    #[arg(long, value_name = "N", requires = "sweep")]
    pub steps: Option<usize>,
    #[command(flatten)]
    pub soak: soak::SoakArgs,
    #[command(flatten)]
    pub child: child::ChildArgs,
    #[command(flatten)]
    pub gpu: gpu::GpuArgs,
    /// The report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One node after another, as appended
    Serial,
    /// Random orders that the edges allow
    Any,
    /// The same with some nodes held back as long as the edges allow
    Worst,
}

impl From<Order> for any_order::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::Serial => Self::Serial,
            Order::Any => Self::Any,
            Order::Worst => Self::Worst,
        }
    }
}

impl StressArgs {
    fn check(&self) -> Result<()> {
        for (flag, value) in [
            ("--sessions", self.sessions),
            ("--rounds", self.rounds),
            ("--max-tokens", self.max_tokens),
            ("--concurrency", self.concurrency),
            ("--steps", self.steps()),
        ] {
            ensure!(value > 0, "{flag} must be at least 1");
        }
        ensure!(self.rounds <= 64, "--rounds must be at most 64, found {}", self.rounds);
        ensure!(self.ctx <= 65_536, "--ctx must be at most 65536, found {}", self.ctx);
        ensure!(
            !self.poison || self.unsafe_run_mutant.is_some() || self.mutants,
            "--poison is for --unsafe-run-mutant and --mutants; without a mutant dead bytes are always filled"
        );
        if self.url.is_none() && self.max_rate != 0.0 {
            bail!("--max-rate is for --url; in process any token that differs fails the run");
        }
        if self.url.is_some() && self.model.instruments.options().any() {
            bail!("--canary, --diff-every and --inject are the server's: give them to `flashlane serve`");
        }
        gpu::check(self)
    }

    pub(crate) fn limits(&self) -> Limits {
        let timeout = Duration::from_secs(self.timeout);
        Limits { max_tokens: self.max_tokens, timeout, concurrency: self.concurrency }
    }

    /// The order in effect.
    pub(crate) fn order(&self) -> Option<Order> {
        let mutant = self.mutant.or(self.unsafe_run_mutant).filter(|_| !gpu::forces(self));
        self.order.or(mutant.map(|_| Order::Any))
    }

    fn steps(&self) -> usize {
        self.steps.unwrap_or(1000)
    }

    /// The first `count` sessions.
    fn scripts(&self, count: usize) -> Result<Vec<Script>> {
        let lexicon = Lexicon::load()?;
        let shape = Shape { kind: Kind::Walk, ctx: self.ctx, rounds: self.rounds, thinking: false };
        (0..count as u64).map(|index| Script::new(&lexicon, shape, self.seed, index)).collect()
    }

    /// The same, for what only the race simulator does.
    fn on_cpu(&self) -> Self {
        let model = ModelArgs { device: Device::Cpu, ..self.model.clone() };
        Self { model, ..self.clone() }
    }

    /// The race simulator with a mutant in its steps, or none.
    fn simulation(&self, mutant: Option<Mutant>, order: Option<Order>) -> Simulation {
        Simulation {
            order: order.map(Into::into),
            percent: self.order_percent.into(),
            seed: self.order_seed,
            mutant,
            poison: self.poison,
            unproved: self.mutant.is_none(),
            // The table shows that it is the arena's doing: the true step is driven in the same way.
            ahead: mutant == Some(Mutant::SharedArena) || (self.mutants && mutant.is_none()),
            judged: self.mutants || self.unsafe_run_mutant.is_some(),
            rows: RowLog::default(),
        }
    }
}

/// Runs the sessions and prints the report; 1 if they have not passed.
///
/// # Errors
/// As [`run`].
pub fn command(args: &StressArgs) -> Result<ExitCode> {
    if args.child.play_only {
        return child::play(args).map(|()| ExitCode::SUCCESS);
    }
    if args.gpu.matrix {
        return gpu::matrix(args);
    }
    let failure = if let Some(seconds) = args.soak.soak {
        let soak = Soak::run(args, seconds)?;
        print(args, &soak, |out| soak.write(out))?;
        soak.failure()
    } else if let (true, Device::Cuda(ordinal)) = (args.mutants, args.model.device) {
        let table = ForcedTable::run(args, ordinal)?;
        print(args, &table, |out| table.write(out))?;
        table.failure()
    } else if args.mutants {
        let table = Table::run(args)?;
        print(args, &table, |out| table.write(out))?;
        table.failure()
    } else if args.sweep {
        let sweep = Sweep::run(args)?;
        print(args, &sweep, |out| sweep.write(out))?;
        sweep.failure()
    } else {
        let report = run(args)?;
        print(args, &report, |out| report.write(out))?;
        report.failure()
    };
    if let Some(failure) = &failure {
        tracing::error!("{failure}");
    }
    Ok(if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(
    args: &StressArgs,
    data: &impl Serialize,
    text: impl FnOnce(&mut io::StdoutLock<'static>) -> io::Result<()>,
) -> Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, data)?;
        writeln!(out)?;
    } else {
        text(&mut out)?;
    }
    Ok(())
}

/// Runs the sessions and reports on them.
///
/// # Errors
/// The model cannot be had, or a flag makes no sense; sessions that fail are part of the report.
pub fn run(args: &StressArgs) -> Result<Report> {
    args.check()?;
    let scripts = args.scripts(args.sessions)?;
    let runtime = runtime()?;
    match &args.url {
        Some(url) => {
            let remote = Remote::new(url, args.model_name.clone(), args.api_key.clone())?;
            let started = Instant::now();
            let sessions =
                runtime.block_on(sessions(&Model::Remote(remote), &scripts, args.limits(), "at the URL"));
            Ok(Report::new(args, &scripts, sessions, None, started.elapsed()))
        }
        None => in_process(args, &scripts, &runtime),
    }
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

fn in_process(args: &StressArgs, scripts: &[Script], runtime: &Runtime) -> Result<Report> {
    let simulation = args.simulation(args.mutant.or(args.unsafe_run_mutant), args.order());
    let sizes = sized(args, scripts, args.concurrency);
    if let Some(mutant) = args.mutant {
        return match simulated(&sizes, simulation) {
            Err(why) => Err(why.context(format!(
                "a step that is not proved corrupts answers from time to time, so no engine starts on it; \
                 --unsafe-run-mutant {} runs it in the race simulator, to see that",
                mutant.slug()
            ))),
            Ok(_) => bail!("{} was not refused", mutant.slug()),
        };
    }
    if gpu::forces(args) {
        return forced::report(args, scripts);
    }
    let rows = simulation.rows.clone();
    let started = Instant::now();
    let (company, seen) = {
        let loaded = if on_gpu(args) { engine::build(&sizes)? } else { simulated(&sizes, simulation)? };
        let model = Model::Local(Local::new(&loaded));
        let company = runtime.block_on(sessions(&model, scripts, args.limits(), "together"));
        (company, loaded.engine.instruments().map(|report| (report, loaded.engine.sampled())))
    };
    let wall = started.elapsed();
    let alone = alone(args, scripts)?;
    let comparison = compare(scripts, &company, &alone, &rows);
    let instruments =
        seen.map(|(report, sampled)| Instrumented::new(report, &sampled, &company, &comparison));
    let mut report = Report::new(args, scripts, company, Some((comparison, rows.steps())), wall);
    report.instruments = instruments;
    Ok(report)
}

fn simulated(sizes: &ModelArgs, simulation: Simulation) -> Result<Loaded> {
    engine::build_with(sizes, |checkpoint, config| Engine::simulated(checkpoint, config, simulation))
}

/// The simulator is the CPU's, and tokens of the CPU and of a GPU are not compared here.
fn on_gpu(args: &StressArgs) -> bool {
    cfg!(feature = "cuda") && args.order().is_none() && args.model.device != Device::Cpu
}

/// The engine's sizes: `rows` at once, and sequences no longer than these sessions need.
fn sized(args: &StressArgs, scripts: &[Script], rows: usize) -> ModelArgs {
    let longest = scripts.iter().filter_map(|script| script.turns.last()).map(|turn| turn.start).max();
    // A model that errs may say more than the script does.
    let len = (longest.unwrap_or(0) + 256 + args.max_tokens).next_multiple_of(256);
    ModelArgs {
        max_num_seqs: rows.min(MAX_ROWS),
        max_num_queued_requests: args.model.max_num_queued_requests.max(args.concurrency),
        max_model_len: args.model.max_model_len.or(Some(len)),
        ..args.model.clone()
    }
}

async fn sessions(
    model: &Model,
    scripts: &[Script],
    limits: Limits,
    what: impl Into<Cow<'static, str>>,
) -> Vec<Session> {
    let bar = bar(scripts.len(), what);
    let mut corrupt = 0;
    let sessions = play_all(model, scripts, limits, |session| {
        corrupt += usize::from(session.class.corrupt());
        bar.inc(1);
        bar.set_message(format!("{corrupt} corrupt"));
    });
    let sessions = sessions.await;
    bar.finish_and_clear();
    sessions
}

/// A bar on a terminal, nothing elsewhere.
pub(crate) fn bar(length: usize, what: impl Into<Cow<'static, str>>) -> Arc<ProgressBar> {
    let bar = ProgressBar::new(length as u64).with_prefix(what);
    let style = ProgressStyle::with_template("{prefix} {pos}/{len} {wide_bar} {elapsed} {eta} {msg}");
    let bar = style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style));
    bar.enable_steady_tick(Duration::from_millis(200));
    Arc::new(bar)
}
