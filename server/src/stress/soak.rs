//! A long run under load: clients over HTTP that ask, stream and hang up, while the process's memory, its descriptors and the
//! engine's pools are read. What a leak, a lost page or a race would move stays where it was after the first quarter.

use std::collections::HashMap;
use std::future::pending;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use flashlane::engine::{Generate, Stats};
use serde::Serialize;
use tokio::net::TcpListener;

use super::gpu::Ran;
pub use super::usage::Usage;
use super::{StressArgs, runtime, sized};
use crate::engine;
use crate::http::{App, ServerOptions, serve};
use crate::sessions::{Answer, Limits, Model, Remote, Script, play};

#[derive(Args, Clone, Debug)]
pub struct SoakArgs {
    /// Instead: a server in this process under the load of --concurrency clients for so many seconds; a third of their sessions
    /// hang up. Exit status 1 if pages, memory or descriptors are not given back, or an answer is not what it was before
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    #[arg(conflicts_with_all = ["url", "mutant", "unsafe_run_mutant", "order", "mutants", "sweep", "matrix", "delay_us"])]
    pub soak: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Soak {
    pub seconds: u64,
    pub clients: usize,
    pub sessions: usize,
    pub index_k: &'static str,
    /// How a GPU ran the steps; `None` on the CPU.
    pub gpu: Option<Ran>,
    /// Descriptors before the first client.
    pub descriptors: usize,
    /// Under load, in order of time.
    pub samples: Vec<Sample>,
    /// After each quarter, when the clients have gone.
    pub quarters: Vec<Sample>,
    /// Sessions played to their end.
    pub played: usize,
    /// Sessions that their client left.
    pub left: usize,
    /// Sessions whose answers are not those of the same session before.
    pub differing: usize,
    /// Sessions that failed, and why the first did.
    pub failed: usize,
    pub first_failure: Option<String>,
    pub steps: u64,
    pub generated_tokens: u64,
    /// What is not as it should be; none: flat.
    pub failures: Vec<String>,
}

/// What is in use at a time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    pub second: f64,
    #[serde(flatten)]
    pub usage: Usage,
    pub running: usize,
    pub waiting: usize,
    pub free_blocks: usize,
    pub free_windows: usize,
    pub free_slots: usize,
    pub finished: u64,
    pub aborted: u64,
}

/// Samples under load.
const SAMPLES: u32 = 64;
/// For requests that clients have left, and for their connections.
const SETTLING: Duration = Duration::from_secs(60);
/// Resident bytes that may come on top after the first quarter, beside one in twenty: what an allocator keeps.
const SLACK: u64 = 16 << 20;
/// A client that leaves stays so long at most, in milliseconds.
const PATIENCE: u64 = 400;

impl Soak {
    /// Runs the server and its clients.
    ///
    /// # Errors
    /// The model cannot be had, or a flag makes no sense; what the load shows is part of the report.
    pub fn run(args: &StressArgs, seconds: u64) -> Result<Self> {
        args.check()?;
        let scripts: Arc<[Script]> = args.scripts(args.sessions)?.into();
        let runtime = runtime()?;
        let loaded = engine::build(&sized(args, &scripts, args.concurrency))?;
        let (engine, options) = (Arc::clone(&loaded.engine), ServerOptions::default());
        let app = App::new(loaded.engine, loaded.tokenizer, loaded.name.clone(), loaded.defaults, options);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).context("no port to listen on")?;
        let url = format!("http://{}", listener.local_addr()?);
        runtime.spawn(serve(listener, Arc::new(app), pending()));
        let remote = Model::Remote(Remote::new(&url, loaded.name, None)?);
        let descriptors = Usage::now(args.model.device)?.descriptors;
        let load = Load {
            args,
            model: remote,
            scripts,
            engine: engine.as_ref(),
            seen: Arc::default(),
            begun: Instant::now(),
            descriptors,
        };
        let (mut samples, mut quarters) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let quarter = Duration::from_secs(seconds) / 4;
            quarters.push(runtime.block_on(load.quarter(quarter, &mut samples))?);
        }
        Ok(load.report(seconds, samples, quarters))
    }

    /// Why the run has not passed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        (!self.failures.is_empty()).then(|| self.failures.join("; "))
    }

    /// Writes the samples and the verdict.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.samples.iter().try_for_each(|sample| writeln!(out, "{sample}"))?;
        self.quarters.iter().try_for_each(|sample| writeln!(out, "a quarter is over: {sample}"))?;
        let Self { seconds, clients, played, left, differing, failed, steps, generated_tokens, .. } = self;
        writeln!(
            out,
            "seconds={seconds} clients={clients} sessions: played={played} left={left} differing={differing} failed={failed}; \
             steps={steps} tokens={generated_tokens}"
        )?;
        let verdict = self.failure().map_or_else(|| "flat".to_owned(), |why| format!("not flat: {why}"));
        writeln!(out, "{verdict}")
    }

    /// Judges the quarters against the first, in which what is made once and kept is made.
    fn judge(&mut self, stats: &Stats) {
        let mut failures = Vec::new();
        let mut hold = |holds: bool, what: String| {
            if !holds {
                failures.push(what);
            }
        };
        for (at, quarter) in self.quarters.iter().enumerate() {
            let free = (quarter.free_blocks, quarter.free_windows, quarter.free_slots);
            let total = (stats.total_blocks, stats.total_windows, stats.total_slots);
            hold(
                free == total,
                format!("blocks, windows and slots after quarter {at}: {free:?} of {total:?}"),
            );
            let open = quarter.usage.descriptors;
            hold(
                open <= self.descriptors,
                format!("descriptors after quarter {at}: {open}, at first {}", self.descriptors),
            );
        }
        if let [first, .., last] = &self.quarters[..] {
            let (a, b) = (first.usage.resident_bytes, last.usage.resident_bytes);
            hold(
                b <= a + a / 20 + SLACK,
                format!("resident bytes: {a} after the first quarter, {b} in the end"),
            );
            let (a, b) = (first.usage.gpu_held_bytes, last.usage.gpu_held_bytes);
            hold(a == b, format!("bytes held of the GPU: {a:?} after the first quarter, {b:?} in the end"));
        }
        hold(
            self.played > 0 && self.left > 0,
            format!("sessions: {} played, {} left", self.played, self.left),
        );
        hold(self.differing == 0, format!("{} sessions have other answers than before", self.differing));
        let why = self.first_failure.clone().unwrap_or_default();
        hold(self.failed == 0, format!("{} sessions failed: {why}", self.failed));
        hold(stats.failed == 0, format!("{} requests failed in the engine", stats.failed));
        let waited = stats.blocks_between_decodes;
        hold(waited <= 1, format!("a decode step waited for {waited} blocks of prompts"));
        let (rows, ended) = (stats.discarded_rows, stats.finished + stats.aborted);
        hold(rows <= ended, format!("{rows} rows were computed for {ended} requests that had ended"));
        self.failures = failures;
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { second, usage, running, waiting, free_blocks, free_windows, free_slots, .. } = self;
        write!(
            f,
            "{second:.1} s: {usage} running={running} waiting={waiting} free: blocks={free_blocks} windows={free_windows} \
             slots={free_slots}"
        )
    }
}

/// What the clients have seen together.
#[derive(Debug, Default)]
struct Seen {
    /// The answers of each session when it was first played.
    answers: Mutex<HashMap<u64, Vec<Answer>>>,
    first_failure: Mutex<Option<String>>,
    played: AtomicUsize,
    left: AtomicUsize,
    differing: AtomicUsize,
    failed: AtomicUsize,
}

impl Seen {
    fn note(&self, index: u64, answers: Vec<Answer>, error: Option<String>) {
        self.played.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = error {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            return;
        }
        let mut all = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = all.entry(index).or_insert_with(|| answers.clone()) != &answers;
        self.differing.fetch_add(usize::from(differs), Ordering::Relaxed);
    }
}

struct Load<'a> {
    args: &'a StressArgs,
    model: Model,
    scripts: Arc<[Script]>,
    engine: &'a dyn Generate,
    seen: Arc<Seen>,
    begun: Instant,
    /// Before the first client.
    descriptors: usize,
}

impl Load<'_> {
    fn sample(&self) -> Result<Sample> {
        let stats = self.engine.stats();
        Ok(Sample {
            second: self.begun.elapsed().as_secs_f64(),
            usage: Usage::now(self.args.model.device)?,
            running: stats.running,
            waiting: stats.waiting,
            free_blocks: stats.free_blocks,
            free_windows: stats.free_windows,
            free_slots: stats.free_slots,
            finished: stats.finished,
            aborted: stats.aborted,
        })
    }

    /// Runs the clients for a while, waits until what they left has been given back, and takes a last sample.
    async fn quarter(&self, time: Duration, samples: &mut Vec<Sample>) -> Result<Sample> {
        let end = Instant::now() + time;
        let clients = (0..self.args.concurrency).map(|number| {
            let (model, scripts, seen) =
                (self.model.clone(), Arc::clone(&self.scripts), Arc::clone(&self.seen));
            tokio::spawn(client(model, scripts, (number, end), self.args.limits(), seen))
        });
        let clients: Vec<_> = clients.collect();
        let pause = (time * 4 / SAMPLES).max(Duration::from_millis(100));
        while Instant::now() < end {
            tokio::time::sleep(pause.min(end.saturating_duration_since(Instant::now()))).await;
            samples.push(self.sample()?);
        }
        for client in clients {
            client.await.context("a client broke off")?;
        }
        let deadline = Instant::now() + SETTLING;
        while !self.settled()? && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let sample = self.sample()?;
        tracing::info!("a quarter is over: {sample}");
        Ok(sample)
    }

    /// Everything has come back: pages, slots, and connections.
    fn settled(&self) -> Result<bool> {
        let s = self.engine.stats();
        let free = (s.free_blocks, s.free_windows, s.free_slots);
        let whole = free == (s.total_blocks, s.total_windows, s.total_slots) && s.running + s.waiting == 0;
        Ok(whole && Usage::now(self.args.model.device)?.descriptors <= self.descriptors)
    }

    fn report(&self, seconds: u64, samples: Vec<Sample>, quarters: Vec<Sample>) -> Soak {
        let (stats, seen) = (self.engine.stats(), &self.seen);
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        let mut soak = Soak {
            seconds,
            clients: self.args.concurrency,
            sessions: self.scripts.len(),
            index_k: super::report::index_k(self.args),
            gpu: Ran::of(self.args),
            descriptors: self.descriptors,
            samples,
            quarters,
            played: count(&seen.played),
            left: count(&seen.left),
            differing: count(&seen.differing),
            failed: count(&seen.failed),
            first_failure: seen.first_failure.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            steps: stats.steps,
            generated_tokens: stats.generated_tokens,
            failures: Vec::new(),
        };
        soak.judge(&stats);
        soak
    }
}

/// Plays sessions until the end; leaves every third one at some point.
async fn client(
    model: Model,
    scripts: Arc<[Script]>,
    (number, end): (usize, Instant),
    limits: Limits,
    seen: Arc<Seen>,
) {
    for round in 0.. {
        if Instant::now() >= end {
            return;
        }
        let script = &scripts[(number * 7 + round * 13) % scripts.len()];
        if (number + round).is_multiple_of(3) {
            let patience = Duration::from_millis(1 + (number * 37 + round * 101) as u64 % PATIENCE);
            let played = tokio::time::timeout(patience, play(&model, script, limits)).await;
            seen.left.fetch_add(usize::from(played.is_err()), Ordering::Relaxed);
            continue;
        }
        let session = play(&model, script, limits).await;
        seen.note(session.index, session.answers, session.error);
    }
}

#[cfg(test)]
mod tests {
    use super::{Sample, Soak, Stats, Usage};

    fn sample(resident_bytes: u64) -> Sample {
        let usage = Usage {
            resident_bytes,
            descriptors: 9,
            gpu_held_bytes: Some(1 << 30),
            gpu_used_bytes: Some(2 << 30),
        };
        Sample {
            second: 1.0,
            usage,
            running: 0,
            waiting: 0,
            free_blocks: 5,
            free_windows: 6,
            free_slots: 7,
            finished: 40,
            aborted: 20,
        }
    }

    fn judged(change: impl Fn(&mut Soak)) -> Vec<String> {
        let mut soak = Soak {
            descriptors: 9,
            quarters: vec![sample(1 << 30); 4],
            played: 40,
            left: 20,
            ..Soak::default()
        };
        change(&mut soak);
        let stats = Stats { total_blocks: 5, total_windows: 6, total_slots: 7, ..Stats::default() };
        soak.judge(&stats);
        soak.failures
    }

    #[test]
    fn what_is_not_flat_is_named() {
        assert_eq!(judged(|_| ()), [""; 0]);
        let said = |change: fn(&mut Soak), words: &str| {
            let failures = judged(change);
            assert!(failures.len() == 1 && failures[0].contains(words), "{failures:?}");
        };
        said(|soak| soak.quarters[1].free_blocks = 4, "after quarter 1: (4, 6, 7) of (5, 6, 7)");
        said(|soak| soak.quarters[2].usage.descriptors = 10, "descriptors after quarter 2: 10, at first 9");
        said(|soak| soak.quarters[3].usage.resident_bytes = 6 << 28, "resident bytes");
        said(|soak| soak.quarters[3].usage.gpu_held_bytes = Some(1), "bytes held of the GPU");
        said(|soak| soak.left = 0, "40 played, 0 left");
        said(|soak| soak.differing = 2, "2 sessions have other answers");
        said(|soak| soak.failed = 1, "1 sessions failed");
    }
}
