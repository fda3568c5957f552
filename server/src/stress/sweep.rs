//! The true step in many orders: every format of index keys, at several numbers of sessions at once.

use std::io;

use anyhow::{Result, ensure};
use serde::Serialize;
use tokio::runtime::Runtime;
use tracing::subscriber::{NoSubscriber, with_default};

use super::{Order, StressArgs, alone, compare, runtime, sessions, simulated, sized};
use crate::cli::{IndexK, ModelArgs, Rounding};
use crate::interval::{Proportion, percent};
use crate::sessions::{Local, Model, Script, Session};

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    pub rounds: usize,
    pub ctx: usize,
    pub seed: u64,
    pub order: Order,
    pub order_seed: u64,
    pub cells: Vec<Cell>,
}

/// One format at one number of sessions.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub index_k: &'static str,
    pub concurrency: usize,
    /// Each ran in an order of its own.
    pub steps: usize,
    pub compared_tokens: usize,
    pub differing_tokens: usize,
    pub differing_sessions: Proportion,
}

const FORMATS: [(IndexK, &str); 3] = [(IndexK::Bf16, "bf16"), (IndexK::Fp8, "fp8"), (IndexK::Fp4, "fp4")];

/// Steps that a session takes by itself, about.
const STEPS_OF_A_SESSION: usize = 128;

impl Sweep {
    /// # Errors
    /// The model cannot be had, or a flag makes no sense.
    pub fn run(args: &StressArgs) -> Result<Self> {
        let args = &args.on_cpu();
        args.check()?;
        ensure!(args.model.rounding == Rounding::Trained, "--sweep is for --rounding trained");
        let order = args.order.unwrap_or(Order::Any);
        let runtime = runtime()?;
        let mut cells = Vec::new();
        // A dozen engines start here, which is nothing to tell.
        with_default(NoSubscriber::new(), || {
            for format in FORMATS {
                cells.extend(Format::new(args, format, order, &runtime)?.cells()?);
            }
            anyhow::Ok(())
        })?;
        let (rounds, ctx) = (args.rounds, args.ctx);
        Ok(Self { rounds, ctx, seed: args.seed, order, order_seed: args.order_seed, cells })
    }

    /// Why the run has not passed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let differing: usize = self.cells.iter().map(|cell| cell.differing_tokens).sum();
        (differing > 0)
            .then(|| format!("{differing} tokens differ from those of the same sessions run alone"))
    }

    /// Writes the table as Markdown.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        let Self { rounds, ctx, seed, order, order_seed, .. } = self;
        let order = format!("{order:?}").to_lowercase();
        writeln!(
            out,
            "Sessions of seed {seed}; rounds {rounds}, context {ctx}; order {order}, of seed {order_seed}.\n\n\
             | index keys | sessions at once | steps | tokens that differ | sessions that differ |\n|---|---:|---:|---:|---|"
        )?;
        for cell in &self.cells {
            let Cell { index_k, concurrency, steps, compared_tokens, differing_tokens, .. } = cell;
            let Proportion { count, of, low, high } = cell.differing_sessions;
            let (low, high) = (percent(low), percent(high));
            writeln!(
                out,
                "| {index_k} | {concurrency} | {steps} | {differing_tokens} of {compared_tokens} | {count} of {of} ({low} to \
                 {high}) |"
            )?;
        }
        Ok(())
    }
}

/// One format; its sessions alone are played once for all numbers at once.
struct Format<'a> {
    args: StressArgs,
    name: &'static str,
    order: Order,
    runtime: &'a Runtime,
    scripts: Vec<Script>,
    alone: Vec<Session>,
}

impl<'a> Format<'a> {
    fn new(
        args: &StressArgs,
        (index_k, name): (IndexK, &'static str),
        order: Order,
        runtime: &'a Runtime,
    ) -> Result<Self> {
        let model = ModelArgs { index_k: Some(index_k), ..args.model.clone() };
        let args = StressArgs { model, ..args.clone() };
        Ok(Self { args, name, order, runtime, scripts: Vec::new(), alone: Vec::new() })
    }

    fn cells(mut self) -> Result<Vec<Cell>> {
        let most = self.args.concurrency;
        let powers = std::iter::successors(Some(1), |at| Some(2 * at)).take_while(|&at| at < most);
        powers.chain([most]).map(|at_once| self.cell(at_once)).collect()
    }

    /// Plays sessions until enough steps have run.
    fn cell(&mut self, at_once: usize) -> Result<Cell> {
        let simulation = self.args.simulation(None, Some(self.order));
        let rows = simulation.rows.clone();
        let args = StressArgs { concurrency: at_once, ..self.args.clone() };
        let lot = at_once.max(self.args.steps().div_ceil(STEPS_OF_A_SESSION));
        self.more(lot)?;
        let loaded = simulated(&sized(&args, &self.scripts, at_once), simulation)?;
        let model = Model::Local(Local::new(&loaded));
        let mut company = Vec::new();
        while rows.steps().run < args.steps() {
            let from = company.len();
            self.more(from + lot)?;
            let scripts = &self.scripts[from..from + lot];
            let label =
                format!("{} {at_once} at once, {} of {} steps", self.name, rows.steps().run, args.steps());
            company.extend(self.runtime.block_on(sessions(&model, scripts, args.limits(), label)));
        }
        let comparison = compare(&self.scripts, &company, &self.alone, &rows);
        Ok(Cell {
            index_k: self.name,
            concurrency: at_once,
            steps: rows.steps().run,
            compared_tokens: comparison.compared_tokens,
            differing_tokens: comparison.differing_tokens,
            differing_sessions: Proportion::new(comparison.differing_sessions, company.len()),
        })
    }

    /// Sees to it that there are this many sessions, each played alone.
    fn more(&mut self, count: usize) -> Result<()> {
        let known = self.scripts.len();
        if known < count {
            let mut scripts = self.args.scripts(count)?.split_off(known);
            self.alone.extend(alone(&self.args, &scripts)?);
            self.scripts.append(&mut scripts);
        }
        Ok(())
    }
}
