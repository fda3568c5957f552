//! What a run found, for people and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use flashlane::engine::Steps;
use serde::Serialize;

use super::compare::{Against, Comparison, Place};
use super::gpu::{Idle, Ran};
use super::{Instrumented, Order, StressArgs, Watched};
use crate::cli::{IndexK, Rounding};
use crate::interval::{Proportion, percent};
use crate::sessions::{Class, Script, Session};

/// Places in the text report; all are in the JSON.
const SHOWN: usize = 4;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub tag: String,
    pub target: String,
    pub sessions: usize,
    pub rounds: usize,
    pub ctx: usize,
    pub seed: u64,
    pub concurrency: usize,
    /// The engine's in this process; a server does not say.
    pub index_k: &'static str,
    pub mutant: Option<&'static str>,
    /// How a GPU ran the steps; `None` on the CPU.
    pub gpu: Option<Ran>,
    /// With `--matrix`.
    pub gpu_idle: Option<Idle>,
    pub order: Option<Order>,
    pub order_seed: u64,
    /// Steps in a hundred that draw an order.
    pub order_percent: u8,
    pub wall_s: f64,
    pub counts: BTreeMap<&'static str, usize>,
    /// Sessions that leaked, called nothing, or failed.
    pub corrupt: Proportion,
    pub wrong_value: usize,
    pub wrong_tool: usize,
    pub stray: usize,
    /// In process only.
    pub comparison: Option<Comparison>,
    /// Steps of the race simulator.
    pub steps: usize,
    /// Of these, with a mutant, those that left something else than the proved step leaves.
    pub wrong_steps: usize,
    /// What the instruments saw, if there were any.
    pub instruments: Option<Instrumented>,
    /// The same of a forced run.
    pub watched: Option<Watched>,
    pub leaks: Vec<Leak>,
    pub errors: Vec<Failure>,
    #[serde(skip)]
    max_rate: f64,
}

/// Content with markup in it.
#[derive(Clone, Debug, Serialize)]
pub struct Leak {
    pub session: u64,
    pub round: usize,
    pub content: String,
    /// Raw tokens, in process only.
    pub ids: Vec<u32>,
    /// The tokens are the due call, values aside: the parser leaked it. Otherwise the model broke its markup. Unknown over
    /// HTTP.
    pub whole_markup: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub session: u64,
    pub error: String,
}

impl Report {
    pub(super) fn new(
        args: &StressArgs,
        scripts: &[Script],
        sessions: Vec<Session>,
        compared: Option<(Comparison, Steps)>,
        wall: Duration,
    ) -> Self {
        let (comparison, steps) = compared.unzip();
        let Steps { run: steps, wrong: wrong_steps } = steps.unwrap_or_default();
        let count = |of: fn(&Session) -> bool| sessions.iter().filter(|s| of(s)).count();
        let classes = Class::ALL
            .into_iter()
            .map(|class| (class.name(), sessions.iter().filter(|session| session.class == class).count()));
        Self {
            tag: args.tag.clone(),
            target: args.url.clone().unwrap_or_else(|| "in process".to_owned()),
            sessions: sessions.len(),
            rounds: args.rounds,
            ctx: args.ctx,
            seed: args.seed,
            concurrency: args.concurrency,
            index_k: index_k(args),
            mutant: args.unsafe_run_mutant.map(flashlane::step::Mutant::slug),
            gpu: Ran::of(args),
            gpu_idle: None,
            order: args.order(),
            order_seed: args.order_seed,
            order_percent: args.order_percent,
            wall_s: wall.as_secs_f64(),
            counts: classes.collect(),
            corrupt: Proportion::new(count(|s| s.class.corrupt()), sessions.len()),
            wrong_value: count(|s| s.faults.wrong_value),
            wrong_tool: count(|s| s.faults.wrong_tool),
            stray: count(|s| s.faults.stray),
            comparison,
            steps,
            wrong_steps,
            instruments: None,
            watched: None,
            leaks: scripts.iter().zip(&sessions).filter_map(leak).collect(),
            errors: sessions.iter().filter_map(failure).collect(),
            max_rate: args.max_rate,
        }
    }

    /// Why the run has not passed: in process no token may differ; over HTTP no more sessions may be corrupt than the caller
    /// allows.
    pub fn failure(&self) -> Option<String> {
        match &self.comparison {
            Some(comparison) if comparison.differing_tokens > 0 => Some(format!(
                "{} tokens differ from those of the same sessions run alone",
                comparison.differing_tokens
            )),
            None if self.corrupt.rate() > self.max_rate => Some(format!(
                "{} of the sessions are corrupt, more than the {} of --max-rate",
                percent(self.corrupt.rate()),
                percent(self.max_rate)
            )),
            _ => self.instruments.as_ref().and_then(Instrumented::failure),
        }
    }

    /// Writes the report in the form of the reported experiment, with the interval and the places behind it.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let of = |class: Class| self.counts.get(class.name()).copied().unwrap_or(0);
        let counted = Class::ALL.into_iter().filter(|class| of(*class) > 0);
        let counts: Vec<String> =
            counted.map(|class| format!("\"{}\": {}", class.name(), of(class))).collect();
        writeln!(
            out,
            "tag={} {} sessions={} seed={}{}",
            self.tag,
            self.target,
            self.sessions,
            self.seed,
            self.setting()
        )?;
        writeln!(out, "wall={:.1}s counts={{{}}}", self.wall_s, counts.join(", "))?;
        writeln!(
            out,
            "CORRUPTION sessions: {}/{} = {}  (leak={} no_tool={} error={} ok-ish[done/maxrounds]={})",
            self.corrupt.count,
            self.corrupt.of,
            percent(self.corrupt.rate()),
            of(Class::Leak),
            of(Class::NoTool),
            of(Class::Error),
            of(Class::Done) + of(Class::MaxRounds),
        )?;
        writeln!(
            out,
            "wrong_value={} wrong_tool={} stray={}",
            self.wrong_value, self.wrong_tool, self.stray
        )?;
        let (low, high) = (percent(self.corrupt.low), percent(self.corrupt.high));
        writeln!(out, "95 % interval of the corruption rate: {low} to {high}")?;
        for Failure { session, error } in self.errors.iter().take(SHOWN) {
            writeln!(out, "session {session} failed: {error}")?;
        }
        if self.mutant.is_some() && self.steps > 0 {
            let Self { steps, wrong_steps, .. } = self;
            writeln!(
                out,
                "wrong_steps={wrong_steps} of {steps}, against the proved step on the same inputs"
            )?;
        }
        self.comparison
            .as_ref()
            .map_or(Ok(()), |comparison| write_comparison(comparison, self.sessions, out))?;
        if let Some(watched) = &self.watched {
            writeln!(out, "{watched}")?;
        }
        self.instruments.as_ref().map_or(Ok(()), |instruments| instruments.write(out))
    }

    fn setting(&self) -> String {
        let mutant = self.mutant.map_or_else(String::new, |slug| format!(" mutant={slug}"));
        let order = self.order.map_or_else(String::new, |order| {
            let name = format!("{order:?}").to_lowercase();
            let share = match self.order_percent {
                100 => String::new(),
                percent => format!(" in {percent}% of the steps"),
            };
            format!(" order={name}{share} order_seed={}", self.order_seed)
        });
        let gpu = self.gpu.map_or_else(String::new, |ran| format!(" {ran}"));
        format!(" index_k={}{gpu}{mutant}{order}", self.index_k)
    }
}

fn write_comparison(comparison: &Comparison, sessions: usize, out: &mut impl Write) -> io::Result<()> {
    let Comparison { compared_tokens, differing_tokens, differing_sessions, places } = comparison;
    writeln!(
        out,
        "differing_tokens={differing_tokens} of {compared_tokens}, in {} of the sessions, against the same sessions alone",
        Proportion::new(*differing_sessions, sessions)
    )?;
    for against in [Against::Alone, Against::Oracle] {
        let of: Vec<&Place> = places.iter().filter(|place| place.against == against).collect();
        for place in of.iter().take(SHOWN) {
            write_place(place, out)?;
        }
        if of.len() > SHOWN {
            writeln!(out, "  and {} more: {}", of.len() - SHOWN, spread(&of))?;
        }
    }
    Ok(())
}

fn write_place(place: &Place, out: &mut impl Write) -> io::Result<()> {
    let token = |id: Option<u32>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
    let against = if place.against == Against::Alone { "alone" } else { "the oracle" };
    write!(
        out,
        "  session {} round {} token {}: {} where {against} has {}; length {} (mod 4 = {}, mod 128 = {})",
        place.session,
        place.round,
        place.token,
        token(place.found),
        token(place.expected),
        place.length,
        place.length_mod_4,
        place.length_mod_128,
    )?;
    if let (Some(row), Some(bucket)) = (place.row, place.bucket) {
        write!(out, ", {} row {row} of {bucket}", if place.prefill { "prefill" } else { "decode" })?;
    }
    match (place.kind, place.distance) {
        (Some(kind), Some(distance)) => writeln!(out, ", {kind:?} from {distance} tokens back"),
        _ => writeln!(out, ", frame"),
    }
}

/// How many places there are by length mod 4, and by row of the batch.
fn spread(places: &[&Place]) -> String {
    let by = |of: fn(&Place) -> Option<usize>| {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for at in places.iter().filter_map(|place| of(place)) {
            *counts.entry(at).or_default() += 1;
        }
        counts.iter().map(|(at, count)| format!("{at}: {count}")).collect::<Vec<_>>().join(", ")
    };
    format!("by length mod 4 {{{}}}, by row {{{}}}", by(|p| Some(p.length_mod_4)), by(|p| p.row))
}

pub(super) fn index_k(args: &StressArgs) -> &'static str {
    match args.model.index_k {
        _ if args.url.is_some() => "unknown",
        Some(IndexK::Fp8) => "fp8",
        Some(IndexK::Fp4) => "fp4",
        None if args.model.rounding == Rounding::Off => "f32",
        Some(IndexK::Bf16) | None => "bf16",
    }
}

fn leak((script, session): (&Script, &Session)) -> Option<Leak> {
    if session.class != Class::Leak {
        return None;
    }
    let round = session.answers.len().checked_sub(1)?;
    let (answer, expected) = (session.answers.get(round)?, script.turns.get(round)?);
    let frame = |i: usize| script.place(answer.prompt + i).is_none();
    let differs = |(i, (a, b)): (usize, (&u32, &u32))| a != b && frame(i);
    let whole = answer.ids.len() == expected.ids.len()
        && !answer.ids.iter().zip(&expected.ids).enumerate().any(differs);
    let whole = (!answer.ids.is_empty()).then_some(whole);
    let content = answer.content.clone();
    Some(Leak { session: session.index, round, content, ids: answer.ids.clone(), whole_markup: whole })
}

fn failure(session: &Session) -> Option<Failure> {
    session.error.clone().map(|error| Failure { session: session.index, error })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Report, Steps};
    use crate::sessions::{Class, Faults, Session};
    use crate::stress::{Comparison, StressArgs};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: StressArgs,
    }

    fn report(classes: &[(Class, usize)], comparison: Option<Comparison>, flags: &[&str]) -> Report {
        let session = |class: Class| Session {
            index: 0,
            class,
            faults: Faults { wrong_value: class == Class::Done, ..Faults::default() },
            answers: Vec::new(),
            error: None,
            late: false,
        };
        let sessions = classes.iter().flat_map(|&(class, count)| std::iter::repeat_n(session(class), count));
        let args = Command::parse_from([&["stress"], flags].concat()).args;
        let compared = comparison.map(|comparison| (comparison, Steps::default()));
        Report::new(&args, &[], sessions.collect(), compared, std::time::Duration::from_millis(185_100))
    }

    #[test]
    fn the_lines_have_the_reported_form() {
        let classes = [(Class::Leak, 6), (Class::MaxRounds, 26), (Class::Done, 8)];
        let mut out = Vec::new();
        report(&classes, None, &["--url", "http://x"]).write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                r#"wall=185.1s counts={"leak": 6, "maxrounds": 26, "done": 8}"#,
                "CORRUPTION sessions: 6/40 = 15%  (leak=6 no_tool=0 error=0 ok-ish[done/maxrounds]=34)",
                "wrong_value=8 wrong_tool=0 stray=0",
                "95 % interval of the corruption rate: 5.71% to 29.84%",
            ]
        );
    }

    #[test]
    fn what_fails_a_run() {
        let broken = [(Class::NoTool, 2), (Class::Done, 18)];
        let url =
            |rate| report(&broken, None, &["--url", "http://x", "--max-rate", rate]).failure().is_none();
        assert!(!url("0.0") && !url("0.09") && url("0.1"));
        let compared = |differing_tokens| Comparison { differing_tokens, ..Comparison::default() };
        let own = report(&broken, Some(compared(0)), &[]).failure();
        assert_eq!(own, None, "the model's own mistakes are no races");
        assert!(report(&[(Class::Done, 3)], Some(compared(1)), &[]).failure().is_some());
    }
}
