//! Known bugs on a GPU: each step with its bug is captured and read back, which refuses it, and then forced to run, in a process
//! of its own. The sessions are held against the same sessions alone on the true step.

use std::fmt::Write as _;
use std::io;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use flashlane::engine::{RowLog, Steps};
use flashlane::instrument::{Fault, FaultKind};
use flashlane::step::Mutant;
use serde::Serialize;

use super::child::{self, Played};
use super::mutants::{found_table, index_k, name, place, proportion, verified};
use super::{Against, Ended, Place, Report, StressArgs, Watched, alone, bar, compare};
use crate::cli::{InstrumentArgs, ModelArgs, OnOff, Schedule};
use crate::interval::Proportion;
use crate::sessions::{Script, Session};
use crate::verify::{self, Caught};

/// One forced run, in a process of its own.
///
/// # Errors
/// The process did not end well, or the reference cannot be played.
pub(super) fn report(args: &StressArgs, scripts: &[Script]) -> Result<Report> {
    let started = Instant::now();
    let Played { sessions, watched } =
        child::played(args)?.map_err(|ended| anyhow!("the forced run, in a process of its own, {ended}"))?;
    let wall = started.elapsed();
    let comparison = compare(scripts, &sessions, &alone(args, scripts)?, &RowLog::default());
    let mut report = Report::new(args, scripts, sessions, Some((comparison, Steps::default())), wall);
    report.watched = watched;
    Ok(report)
}

/// Every known bug, and the true step beside them, on a GPU.
#[derive(Clone, Debug, Serialize)]
pub struct ForcedTable {
    pub sessions: usize,
    pub rounds: usize,
    pub ctx: usize,
    pub concurrency: usize,
    pub seed: u64,
    pub index_k: &'static str,
    pub captured: bool,
    pub pdl: bool,
    pub delay_us: u32,
    pub diff_every: u64,
    /// What finds each in the largest decode step.
    pub found: Vec<Caught>,
    /// In the same order: why the step is refused as the GPU captured it.
    pub refused: Vec<Option<String>>,
    pub ran: Vec<ForcedRun>,
    /// Faults put into the true step on purpose, watched; those within a step into an eager one.
    pub faults: Vec<ForcedRun>,
}

/// How the lanes of a forced step run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One after another.
    OneStream,
    /// Side by side.
    Lanes,
    /// Side by side, with the canary and the differential on.
    Watched,
    /// Side by side, with the node held back that the bug lets others overtake.
    HeldBack,
}

#[derive(Clone, Debug, Serialize)]
pub struct ForcedRun {
    /// `None`: the true step.
    pub mutant: Option<&'static str>,
    pub fault: Option<&'static str>,
    pub way: Way,
    /// How its process ended, if not with the sessions played; nothing was compared then.
    pub ended: Option<Ended>,
    pub compared_tokens: usize,
    pub differing_tokens: usize,
    pub differing_sessions: Proportion,
    pub corrupt_sessions: Proportion,
    pub watched: Option<Watched>,
    /// The first token that is not the one of the same session alone.
    pub first: Option<Place>,
    pub wall_s: f64,
}

const WAYS: [Way; 4] = [Way::OneStream, Way::Lanes, Way::Watched, Way::HeldBack];
const DELAY_US: u32 = 200;
const WATCHED: InstrumentArgs = InstrumentArgs { canary: Some(16), diff_every: Some(8), inject: None };

/// A GPU's outputs have a block of their own, so that nothing of this bug is left to run.
const NOT_ON_A_GPU: Mutant = Mutant::SharedArena;

impl ForcedTable {
    /// # Errors
    /// The model or the GPU cannot be had, or a flag makes no sense.
    pub fn run(args: &StressArgs, gpu: u32) -> Result<Self> {
        let verified = verified(args)?;
        ensure!(!args.poison, "--poison is for the race simulator");
        let args = &StressArgs { mutants: false, json: false, ..args.clone() };
        // First: it says at once where there is no such GPU.
        let refused = verify::refused(&verified, gpu)?;
        let found = verify::mutants(&verified)?;
        let scripts = args.scripts(args.sessions)?;
        let alone = alone(args, &scripts)?;
        let delay_us = args.gpu.delay_us.unwrap_or(DELAY_US);
        let steps =
            [None].into_iter().chain(Mutant::ALL.into_iter().filter(|m| *m != NOT_ON_A_GPU).map(Some));
        let cases: Vec<_> = steps.flat_map(|mutant| WAYS.map(|way| (mutant, way))).collect();
        let bar = bar(cases.len() + FaultKind::ALL.len(), "forced runs");
        let play = |args: StressArgs, way| {
            let run = ForcedRun::new(&args, &scripts, &alone, way);
            bar.inc(1);
            if let Ok(run) = &run {
                tracing::info!(
                    mutant = run.mutant,
                    fault = run.fault,
                    ?way,
                    seconds = run.wall_s,
                    "{}",
                    run.cell()
                );
            }
            run
        };
        let ran = cases.into_iter().map(|(mutant, way)| play(forced(args, mutant, way, delay_us), way));
        let ran = ran.collect::<Result<_>>()?;
        let faults = FaultKind::ALL.into_iter().map(|kind| play(faulty(args, kind), Way::Watched));
        let faults = faults.collect::<Result<_>>()?;
        bar.finish_and_clear();
        Ok(Self {
            sessions: args.sessions,
            rounds: args.rounds,
            ctx: args.ctx,
            concurrency: args.concurrency,
            seed: args.seed,
            index_k: name(index_k(args)),
            captured: args.model.graph == OnOff::On,
            pdl: args.model.pdl == OnOff::On,
            delay_us,
            diff_every: watched(args).diff_every.unwrap_or(0),
            found,
            refused,
            ran,
            faults,
        })
    }

    /// Why the table is not as it should be.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let missed = self.found.iter().find(|one| one.caught_by.is_empty());
        let missed = missed.map(|one| format!("no check finds {}", one.mutant));
        let is_true = |one: &&ForcedRun| one.mutant.is_none();
        let wrong =
            self.ran.iter().filter(is_true).any(|one| one.differing_tokens > 0 || one.ended.is_some());
        missed.or_else(|| wrong.then(|| "the true step differs, or did not run".to_owned()))
    }

    /// Writes the tables as Markdown.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        out.write_all(found_table(&self.found).as_bytes())?;
        let Self { sessions, rounds, ctx, concurrency, seed, index_k, delay_us, diff_every, .. } = self;
        let how = if self.captured { "captured" } else { "eager" };
        let pdl = if self.pdl { " with programmatic launches" } else { "" };
        writeln!(
            out,
            "\n{how}{pdl}; {sessions} sessions of seed {seed}, {concurrency} at once; rounds {rounds}, context {ctx}; index keys \
             {index_k}; the victim held back for {delay_us} us; watched: every step by the canary, one in {diff_every} run again.\n"
        )?;
        out.write_all(self.ran_table().as_bytes())?;
        writeln!(out, "\n| fault on purpose, watched | sessions that differ |\n|---|---|")?;
        let name = |run: &ForcedRun| run.fault.unwrap_or("none");
        self.faults.iter().try_for_each(|run| writeln!(out, "| `{}` | {} |", name(run), run.cell()))
    }

    fn ran_table(&self) -> String {
        let mut text = "| step | as captured | one stream | lanes side by side | the same, watched | the victim held back | first \
                        wrong token |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
        for runs in self.ran.chunks(WAYS.len()) {
            let mutant = runs.first().and_then(|run| run.mutant);
            let at = self.found.iter().position(|one| Some(one.mutant) == mutant);
            let refused = at.and_then(|at| self.refused.get(at)?.as_ref());
            let captured = if refused.is_some() { "refused" } else { "proved" };
            let step = mutant.map_or_else(|| "true".to_owned(), |slug| format!("`{slug}`"));
            let cells: Vec<String> = runs.iter().map(ForcedRun::cell).collect();
            let first =
                runs.iter().find_map(|run| run.first.as_ref()).map_or_else(|| "none".to_owned(), place);
            let _ = writeln!(text, "| {step} | {captured} | {} | {first} |", cells.join(" | "));
        }
        text
    }
}

impl ForcedRun {
    fn new(args: &StressArgs, scripts: &[Script], alone: &[Session], way: Way) -> Result<Self> {
        let started = Instant::now();
        let (played, ended) = match child::played(args)? {
            Ok(played) => (played, None),
            Err(ended) => (Played { sessions: Vec::new(), watched: None }, Some(ended)),
        };
        let wall_s = started.elapsed().as_secs_f64();
        let comparison = compare(scripts, &played.sessions, alone, &RowLog::default());
        let (all, corrupt) =
            (played.sessions.len(), played.sessions.iter().filter(|s| s.class.corrupt()).count());
        Ok(Self {
            mutant: args.unsafe_run_mutant.map(Mutant::slug),
            fault: args.model.instruments.inject.map(|fault| fault.kind.name()),
            way,
            ended,
            compared_tokens: comparison.compared_tokens,
            differing_tokens: comparison.differing_tokens,
            differing_sessions: Proportion::new(comparison.differing_sessions, all),
            corrupt_sessions: Proportion::new(corrupt, all),
            watched: played.watched,
            first: comparison.places.into_iter().find(|place| place.against == Against::Alone),
            wall_s,
        })
    }

    fn cell(&self) -> String {
        if let Some(ended) = &self.ended {
            return ended.to_string();
        }
        let watched = self.watched.map_or_else(String::new, |w| {
            format!("; canary {}, differential {} of {}", w.canary_hits, w.differing_steps, w.sampled_steps)
        });
        format!("{}{watched}", proportion(&self.differing_sessions))
    }
}

/// The arguments of one forced run.
fn forced(args: &StressArgs, mutant: Option<Mutant>, way: Way, delay_us: u32) -> StressArgs {
    let schedule = if way == Way::OneStream { Schedule::Serial } else { Schedule::Forked };
    let instruments = if way == Way::Watched { watched(args) } else { InstrumentArgs::default() };
    let mut args = args.clone();
    args.model = ModelArgs { schedule, instruments, ..args.model };
    args.unsafe_run_mutant = mutant;
    args.gpu.delay_us = (way == Way::HeldBack).then_some(delay_us);
    args
}

/// The arguments of a run of the true step with faults put into it. A captured step takes none inside it.
fn faulty(args: &StressArgs, kind: FaultKind) -> StressArgs {
    let mut args = forced(args, None, Way::Watched, 0);
    args.model.instruments.inject = Some(Fault::new(kind));
    args.model.graph = if kind.inside() { OnOff::Off } else { args.model.graph };
    args
}

/// The instruments that were asked for, or both.
fn watched(args: &StressArgs) -> InstrumentArgs {
    let asked = &args.model.instruments;
    if asked.options().any() { asked.clone() } else { WATCHED }
}

#[cfg(test)]
mod tests {
    use super::{Ended, ForcedRun, ForcedTable, Proportion, WAYS, Watched, Way};
    use crate::verify::Caught;

    fn run(mutant: Option<&'static str>, way: Way) -> ForcedRun {
        let differing = if mutant.is_some() && way != Way::OneStream { 32 } else { 0 };
        let watched = Watched { canary_hits: 1, differing_steps: 2, sampled_steps: 9 };
        ForcedRun {
            mutant,
            fault: None,
            way,
            ended: None,
            compared_tokens: 100,
            differing_tokens: differing,
            differing_sessions: Proportion::new(differing, 32),
            corrupt_sessions: Proportion::new(0, 32),
            watched: (way == Way::Watched).then_some(watched),
            first: None,
            wall_s: 1.0,
        }
    }

    fn table() -> ForcedTable {
        let caught = Caught {
            mutant: "dropped-join",
            about: "a lane goes on",
            place: String::new(),
            caught_by: vec!["order"],
            hazards: 3,
        };
        let ran = [None, Some("dropped-join")].into_iter().flat_map(|m| WAYS.map(|way| run(m, way)));
        ForcedTable {
            sessions: 32,
            rounds: 1,
            ctx: 160,
            concurrency: 32,
            seed: 0,
            index_k: "bf16",
            captured: true,
            pdl: true,
            delay_us: 200,
            diff_every: 8,
            found: vec![caught],
            refused: vec![Some("hazards".to_owned())],
            ran: ran.collect(),
            faults: vec![ForcedRun { fault: Some("page"), ..run(None, Way::Watched) }],
        }
    }

    #[test]
    fn a_row_has_every_way_to_run() {
        let mut table = table();
        table.ran[7].ended = Some(Ended::Stopped { after_s: 120 });
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let none = "0 of 32 (0% to 10.89%)";
        let all = "32 of 32 (89.11% to 100%)";
        for row in [
            format!(
                "| true | proved | {none} | {none} | {none}; canary 1, differential 2 of 9 | {none} | none |"
            ),
            format!(
                "| `dropped-join` | refused | {none} | {all} | {all}; canary 1, differential 2 of 9 | stopped after 120 s | none |"
            ),
            format!("| `page` | {none}; canary 1, differential 2 of 9 |"),
        ] {
            assert!(text.contains(&row), "{text}");
        }
        assert_eq!(table.failure(), None);
    }

    #[test]
    fn what_fails_a_table() {
        let mut wrong = table();
        wrong.ran[1].differing_tokens = 1;
        assert!(wrong.failure().unwrap().contains("true step"));
        let mut missed = table();
        missed.found[0].caught_by.clear();
        assert_eq!(missed.failure().unwrap(), "no check finds dropped-join");
    }
}
