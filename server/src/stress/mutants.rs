//! The table of known bugs: what finds each, and what it does when it is forced to run.

use std::fmt::Write as _;
use std::io;

use anyhow::{Result, ensure};
use flashlane::engine::Steps;
use flashlane::step::Mutant;
use serde::Serialize;
use tokio::runtime::Runtime;
use tracing::subscriber::{NoSubscriber, with_default};

use super::{Against, Order, Place, StressArgs, alone, compare, runtime, sessions, simulated, sized};
use crate::cli::{IndexK, Rounding};
use crate::interval::{Proportion, percent};
use crate::sessions::{Local, Model, Script, Session};
use crate::verify::{self, Caught, Schedule, VerifyArgs};

/// Every known bug, and the true step beside them.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub sessions: usize,
    pub rounds: usize,
    pub ctx: usize,
    pub concurrency: usize,
    pub seed: u64,
    pub order_seed: u64,
    pub index_k: &'static str,
    pub poison: bool,
    /// What finds each in the largest decode step.
    pub found: Vec<Caught>,
    pub ran: Vec<Ran>,
}

/// A step run in one kind of order.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// `None`: the true step.
    pub mutant: Option<&'static str>,
    pub order: Order,
    pub steps: usize,
    /// Steps that left something else than the proved step leaves of the same inputs.
    pub wrong_steps: usize,
    pub compared_tokens: usize,
    pub differing_tokens: usize,
    pub differing_sessions: Proportion,
    pub corrupt_sessions: Proportion,
    /// The first token that is not the one of the same session alone.
    pub first: Option<Place>,
}

impl Table {
    /// # Errors
    /// The model cannot be had, or a flag makes no sense.
    pub fn run(args: &StressArgs) -> Result<Self> {
        let args = &args.on_cpu();
        let found = Self::found(args)?;
        let scripts = args.scripts(args.sessions)?;
        // Two dozen engines start here, which is nothing to tell.
        let ran = with_default(NoSubscriber::new(), || run_all(args, &scripts, &runtime()?))?;
        Ok(Self {
            sessions: args.sessions,
            rounds: args.rounds,
            ctx: args.ctx,
            concurrency: args.concurrency,
            seed: args.seed,
            order_seed: args.order_seed,
            index_k: name(index_k(args)),
            poison: args.poison,
            found,
            ran,
        })
    }

    /// What finds each mutant in the largest decode step that these sessions run.
    ///
    /// # Errors
    /// As [`Table::run`].
    pub fn found(args: &StressArgs) -> Result<Vec<Caught>> {
        verify::mutants(&verified(args)?)
    }

    /// Why the table is not as it should be.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let missed = self.found.iter().find(|one| one.caught_by.is_empty());
        let missed = missed.map(|one| format!("no check finds {}", one.mutant));
        let wrong = self.ran.iter().any(|one| one.mutant.is_none() && one.differing_tokens > 0);
        missed.or_else(|| wrong.then(|| "tokens of the true step differ".to_owned()))
    }

    /// Writes the tables as Markdown.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        out.write_all(found_table(&self.found).as_bytes())?;
        let Self { sessions, rounds, ctx, concurrency, seed, order_seed, index_k, .. } = self;
        let poison = if self.poison { ", dead bytes filled with NaN" } else { "" };
        writeln!(
            out,
            "\n{sessions} sessions of seed {seed}, {concurrency} at once; rounds {rounds}, context {ctx}; orders of seed \
             {order_seed}; index keys {index_k}{poison}.\n"
        )?;
        out.write_all(ran_table(&self.ran).as_bytes())
    }
}

/// What is verified: the largest decode step that these sessions run.
pub(super) fn verified(args: &StressArgs) -> Result<VerifyArgs> {
    args.check()?;
    ensure!(args.model.rounding == Rounding::Trained, "--mutants is for --rounding trained");
    let sizes = sized(args, &args.scripts(args.sessions)?, args.concurrency);
    Ok(VerifyArgs {
        model: sizes.model,
        flash: false,
        pro: false,
        batch: Some(sizes.max_num_seqs),
        prefill: false,
        max_positions: sizes.max_model_len,
        schedule: Schedule::Forked,
        index_k: index_k(args),
        mutant: None,
        list_mutants: true,
        svg: None,
        dot: None,
        device: None,
        json: false,
    })
}

/// The first table.
#[must_use]
pub fn found_table(found: &[Caught]) -> String {
    let mut text = "| mutant | caught by | hazards | bug |\n|---|---|---:|---|\n".to_owned();
    for Caught { mutant, about, caught_by, hazards, .. } in found {
        let by = if caught_by.is_empty() { "nothing".to_owned() } else { caught_by.join(", ") };
        let _ = writeln!(text, "| `{mutant}` | {by} | {hazards} | {about} |");
    }
    text
}

fn ran_table(ran: &[Ran]) -> String {
    let mut text = "| step | order | wrong steps | tokens that differ | sessions that differ | corrupt sessions | first wrong \
                    token |\n|---|---|---:|---:|---|---|---|\n"
        .to_owned();
    for one in ran {
        let step = one.mutant.map_or_else(|| "true".to_owned(), |slug| format!("`{slug}`"));
        let order = format!("{:?}", one.order).to_lowercase();
        let _ = writeln!(
            text,
            "| {step} | {order} | {} of {} | {} of {} | {} | {} | {} |",
            one.wrong_steps,
            one.steps,
            one.differing_tokens,
            one.compared_tokens,
            proportion(&one.differing_sessions),
            proportion(&one.corrupt_sessions),
            one.first.as_ref().map_or_else(|| "none".to_owned(), place),
        );
    }
    text
}

pub(super) fn proportion(of: &Proportion) -> String {
    format!("{} of {} ({} to {})", of.count, of.of, percent(of.low), percent(of.high))
}

pub(super) fn place(place: &Place) -> String {
    let step = match (place.prefill, place.row, place.bucket) {
        (true, ..) => ", prefill".to_owned(),
        (_, Some(row), Some(bucket)) => format!(", decode row {row} of {bucket}"),
        _ => String::new(),
    };
    format!("session {}, round {}, position {}{step}", place.session, place.round, place.length)
}

fn run_all(args: &StressArgs, scripts: &[Script], runtime: &Runtime) -> Result<Vec<Ran>> {
    let alone = alone(args, scripts)?;
    let steps = [None].into_iter().chain(Mutant::ALL.into_iter().map(Some));
    let cases = steps.flat_map(|m| [Order::Serial, Order::Any, Order::Worst].map(|order| (m, order)));
    cases.map(|(mutant, order)| run(args, scripts, &alone, (mutant, order), runtime)).collect()
}

fn run(
    args: &StressArgs,
    scripts: &[Script],
    alone: &[Session],
    (mutant, order): (Option<Mutant>, Order),
    runtime: &Runtime,
) -> Result<Ran> {
    let simulation = args.simulation(mutant, Some(order));
    let rows = simulation.rows.clone();
    let loaded = simulated(&sized(args, scripts, args.concurrency), simulation)?;
    let slug = mutant.map(Mutant::slug);
    let label = format!("{} {order:?}", slug.unwrap_or("true"));
    let model = Model::Local(Local::new(&loaded));
    let company = runtime.block_on(sessions(&model, scripts, args.limits(), label));
    let comparison = compare(scripts, &company, alone, &rows);
    let Steps { run: steps, wrong: wrong_steps } = rows.steps();
    let corrupt = company.iter().filter(|session| session.class.corrupt()).count();
    Ok(Ran {
        mutant: slug,
        order,
        steps,
        wrong_steps,
        compared_tokens: comparison.compared_tokens,
        differing_tokens: comparison.differing_tokens,
        differing_sessions: Proportion::new(comparison.differing_sessions, company.len()),
        corrupt_sessions: Proportion::new(corrupt, company.len()),
        first: comparison.places.into_iter().find(|place| place.against == Against::Alone),
    })
}

pub(super) fn index_k(args: &StressArgs) -> IndexK {
    args.model.index_k.unwrap_or(IndexK::Bf16)
}

pub(super) const fn name(index_k: IndexK) -> &'static str {
    match index_k {
        IndexK::Bf16 => "bf16",
        IndexK::Fp8 => "fp8",
        IndexK::Fp4 => "fp4",
    }
}
