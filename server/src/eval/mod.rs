//! `flashlane eval`: how often the built-in model's answers are right, measured in this engine on held-out items.
//!
//! Every item is played as a client would play it, many at once, and an item is right only if every answer in it is. The three
//! formats of index keys are compared token by token on a part of the items.

mod ladder;
mod suites;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use flashlane::cpu::KnockOut;
use flashlane::engine::Engine;

use crate::cli::{Device, IndexK, ModelArgs};
use crate::engine::{self, Loaded};
use crate::interval::Proportion;
use crate::sessions::{Limits, Local, Model, Script, Session, play_all};
use crate::stress::bar;
use crate::tasks::lexicon::Lexicon;
pub use ladder::{Ladder, Layer, Plan, Rung, Struck};
pub use suites::{Suite, suites};
pub use table::{Agreement, Row, Table, Verdict};

/// More than any right answer has.
const MAX_TOKENS: usize = 256;
/// Items of `--quick`, where the full measurement has `--count`.
const QUICK: usize = 16;

const LADDER_HELP: &str = "\
Measure what faults of the index cost, beside what they must cost: on the CPU, in each C4 layer, over --count needles with prompts of \
500 tokens. A fault is a token for which random rows are selected in place of the best.

First one token of each answer is struck, one after another, and the whole prompt: how often a fault breaks its own token, whether \
it breaks another, and whether the prompt matters. If faults break their own token alone, a share q of faulty tokens fails an answer \
with 1 - prod(1 - q c), c being how easily each token breaks. That is the prediction, and shares of 1, 10, 30 and 100 % are held \
to it with other random rows. Exit 1 if at any of them the intervals of the measured and the predicted rate do not meet. With too few \
items half as many faults would pass as well; the table says so.";

#[derive(Args, Clone, Debug)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Of the items, which no training run has seen
    #[arg(long, default_value_t = 9_000_001)]
    pub seed: u64,
    /// Items of each kind; long and small ones have fewer, and needles 128 lengths
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub count: usize,
    /// A few items of each kind, in minutes
    #[arg(long, conflicts_with = "count")]
    pub quick: bool,
    /// Items at once, which share a step whatever --max-num-seqs says
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub concurrency: usize,
    /// Take a layer's compressed rows away: a C4 layer sees random ones, a C128 layer none; may be repeated
    #[arg(long, value_name = "LAYER")]
    pub knock_out: Vec<usize>,
    /// Measure what faults of the index cost, beside what they must cost; exit 1 if a rate is off
    #[arg(long, long_help = LADDER_HELP, conflicts_with_all = ["knock_out", "only"])]
    pub ladder: bool,
    /// Only kinds whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// The table as JSON
    #[arg(long)]
    pub json: bool,
}

impl EvalArgs {
    fn limits(&self) -> Limits {
        // A slow machine is no wrong answer.
        Limits { max_tokens: MAX_TOKENS, timeout: Duration::from_secs(3600), concurrency: self.concurrency }
    }

    fn model(&self, suites: &[Suite], index_k: Option<IndexK>) -> ModelArgs {
        let scripts = suites.iter().flat_map(|suite| &suite.scripts);
        let longest = scripts.filter_map(|s| s.turns.last()).map(|t| t.start + t.ids.len()).max();
        let len = (longest.unwrap_or(0) + MAX_TOKENS).next_multiple_of(256);
        ModelArgs {
            index_k: index_k.or(self.model.index_k),
            max_num_seqs: self.concurrency,
            max_num_queued_requests: self.model.max_num_queued_requests.max(self.concurrency),
            max_model_len: self.model.max_model_len.or(Some(len)),
            ..self.model.clone()
        }
    }
}

/// Measures and prints the table; 1 if a bar is missed for sure.
///
/// # Errors
/// As [`run`].
pub fn command(args: &EvalArgs) -> Result<ExitCode> {
    let passed = if args.ladder {
        let ladder = climb(args, &Plan::default())?;
        print(args, &ladder, |out| ladder.write(out))?;
        ladder.passed()
    } else {
        let table = run(args)?;
        print(args, &table, |out| table.write(out))?;
        table.passed()
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print<T: serde::Serialize>(
    args: &EvalArgs,
    table: &T,
    write: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>,
) -> Result<()> {
    let mut out = io::stdout().lock();
    if !args.json {
        return Ok(write(&mut out)?);
    }
    serde_json::to_writer_pretty(&mut out, table)?;
    Ok(writeln!(out)?)
}

/// The engine of `args`; one with layers knocked out runs on the CPU.
fn load(args: &ModelArgs, knocked_out: &[KnockOut]) -> Result<Loaded> {
    if knocked_out.is_empty() {
        return engine::build(args);
    }
    ensure!(
        !matches!(args.device, Device::Cuda(_)),
        "--device cuda: layers are knocked out on the CPU only; leave --device out"
    );
    engine::build_with(args, |checkpoint, config| Engine::on_cpu_without(checkpoint, config, knocked_out))
}

/// Plays every suite and makes the table.
///
/// # Errors
/// The model cannot be had, or a flag makes no sense.
pub fn run(args: &EvalArgs) -> Result<Table> {
    ensure!(args.concurrency > 0 && args.count > 0, "--concurrency and --count must be at least 1");
    let count = if args.quick { QUICK } else { args.count };
    let lexicon = Lexicon::load()?;
    let mut suites = suites(&lexicon, args.seed, count)?;
    suites.retain(|suite| args.only.as_ref().is_none_or(|part| suite.name.contains(part.as_str())));
    ensure!(
        !suites.is_empty(),
        "--only {:?}: no kind has that in its name",
        args.only.as_deref().unwrap_or("")
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let started = Instant::now();
    let knocked_out: Vec<KnockOut> = args.knock_out.iter().copied().map(KnockOut::of).collect();
    if !knocked_out.is_empty() {
        // A broken model has no bar to meet, and no other format of index keys to be compared with.
        suites.iter_mut().for_each(|suite| (suite.bar, suite.compared) = (None, 0));
    }
    let loaded = load(&args.model(&suites, None), &knocked_out)?;
    let model = Model::Local(Local::new(&loaded));
    let knocked_out = args.knock_out.clone();
    let mut table = Table { model: loaded.name.clone(), seed: args.seed, knocked_out, ..Table::default() };
    let mut compared = Vec::new();
    for suite in &suites {
        let sessions = runtime.block_on(answers(&model, &suite.scripts, args.limits(), suite.name));
        table.push(suite, &sessions);
        compared.extend(sessions.into_iter().take(suite.compared));
    }
    drop((model, loaded));
    table.agreement = agreement(args, &suites, &compared, &runtime)?;
    table.wall_s = started.elapsed().as_secs_f64();
    Ok(table)
}

/// The fault ladder; `args.count` items.
///
/// # Errors
/// As [`run`].
pub fn climb(args: &EvalArgs, plan: &Plan) -> Result<Ladder> {
    ensure!(args.concurrency > 0 && args.count > 0, "--concurrency and --count must be at least 1");
    ladder::run(args, plan)
}

/// How many of the compared items have the very same answers with other index keys.
fn agreement(
    args: &EvalArgs,
    suites: &[Suite],
    truth: &[Session],
    runtime: &tokio::runtime::Runtime,
) -> Result<Vec<Agreement>> {
    let first = args.model.index_k.unwrap_or(IndexK::Bf16);
    let mut scripts: Vec<Script> =
        suites.iter().flat_map(|s| s.scripts.iter().take(s.compared).cloned()).collect();
    (0..).zip(&mut scripts).for_each(|(index, script)| script.index = index);
    let others = [IndexK::Bf16, IndexK::Fp8, IndexK::Fp4].into_iter().filter(|other| *other != first);
    let one = |other| -> Result<Agreement> {
        let loaded = engine::build(&args.model(suites, Some(other)))?;
        let model = Model::Local(Local::new(&loaded));
        let name = table::index_k(other);
        let sessions = runtime.block_on(answers(&model, &scripts, args.limits(), name));
        let same = sessions.iter().zip(truth).filter(|(a, b)| same(a, b)).count();
        let right = |sessions: &[Session]| {
            Proportion::new(sessions.iter().filter(|s| s.right()).count(), sessions.len())
        };
        let same = Proportion::new(same, sessions.len());
        Ok(Agreement {
            index_k: name,
            with: table::index_k(first),
            same,
            right: right(&sessions),
            right_with: right(truth),
        })
    };
    if scripts.is_empty() { Ok(Vec::new()) } else { others.map(one).collect() }
}

fn same(a: &Session, b: &Session) -> bool {
    let ids =
        |session: &Session| -> Vec<Vec<u32>> { session.answers.iter().map(|a| a.ids.clone()).collect() };
    ids(a) == ids(b)
}

async fn answers(model: &Model, scripts: &[Script], limits: Limits, what: &'static str) -> Vec<Session> {
    let bar = bar(scripts.len(), what);
    let mut wrong = 0;
    let sessions = play_all(model, scripts, limits, |session| {
        wrong += usize::from(!session.right());
        bar.inc(1);
        bar.set_message(format!("{wrong} wrong"));
    })
    .await;
    bar.finish_and_clear();
    sessions
}
