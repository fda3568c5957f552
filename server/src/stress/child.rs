//! Forced runs in a process of their own: what no proof allows may crash it or hang it, and then that is the outcome. The
//! child plays the sessions and prints them; whoever started it holds them against the sessions alone.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{StressArgs, gpu, on_gpu, runtime, sessions, simulated, sized};
use crate::cli::Device;
use crate::engine;
use crate::sessions::{Local, Model, Session};

#[derive(Args, Clone, Debug)]
pub struct ChildArgs {
    /// Seconds after which a forced run on a GPU, which has a process of its own, is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watchdog: u64,
    /// Plays the sessions and prints them as JSON, for the process that scores them
    #[arg(long, hide = true)]
    pub play_only: bool,
}

/// What a child has to say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Played {
    pub(super) sessions: Vec<Session>,
    pub(super) watched: Option<Watched>,
}

/// What the instruments saw of a forced run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    pub canary_hits: u64,
    /// Steps that differ from their second run, of those that ran again.
    pub differing_steps: u64,
    pub sampled_steps: u64,
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { canary_hits, differing_steps, sampled_steps } = self;
        write!(
            f,
            "canary hits: {canary_hits}; steps that differ from their second run: {differing_steps} of {sampled_steps}"
        )
    }
}

/// How a child ended that did not do what it was there for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Stopped {
        after_s: u64,
    },
    Signal {
        signal: i32,
        said: String,
    },
    Status {
        status: i32,
        said: String,
    },
    /// It ended well, with something else than sessions.
    Babble {
        said: String,
    },
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped { after_s } => write!(f, "stopped after {after_s} s"),
            Self::Signal { signal, said } => write!(f, "ended by signal {signal}: {said}"),
            Self::Status { status, said } => write!(f, "ended with status {status}: {said}"),
            Self::Babble { said } => write!(f, "printed no sessions: {said}"),
        }
    }
}

/// The child's side.
///
/// # Errors
/// The engine does not start, or the output failed.
pub(super) fn play(args: &StressArgs) -> Result<()> {
    args.check()?;
    let scripts = args.scripts(args.sessions)?;
    let sizes = sized(args, &scripts, args.concurrency);
    let loaded = if gpu::forces(args) {
        gpu::forced(args, &sizes)?
    } else if on_gpu(args) {
        engine::build(&sizes)?
    } else {
        simulated(&sizes, args.simulation(args.unsafe_run_mutant, args.order()))?
    };
    let model = Model::Local(Local::new(&loaded));
    let sessions = runtime()?.block_on(sessions(&model, &scripts, args.limits(), "together"));
    let watched = loaded.engine.instruments().map(|report| Watched {
        canary_hits: report.canary.map_or(0, |canary| canary.hits),
        differing_steps: report.differential.as_ref().map_or(0, |diff| diff.differing),
        sampled_steps: report.differential.as_ref().map_or(0, |diff| diff.sampled),
    });
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &Played { sessions, watched })?;
    Ok(out.flush()?)
}

/// Plays the sessions of `args` in a child of this binary.
///
/// # Errors
/// There is no child; how one ended is `Err` inside.
pub(super) fn played(args: &StressArgs) -> Result<Result<Played, Ended>> {
    let mut command = Command::new(std::env::current_exe().context("this binary cannot be found")?);
    command.args(flags(args));
    let output = match watch(command, Duration::from_secs(args.child.watchdog))? {
        Ok(output) => output,
        Err(ended) => return Ok(Err(ended)),
    };
    let played: Result<Played, _> = serde_json::from_slice(&output);
    Ok(match played {
        Ok(played) if played.sessions.len() == args.sessions => Ok(played),
        Ok(played) => Err(Ended::Babble { said: format!("{} of {}", played.sessions.len(), args.sessions) }),
        Err(error) => Err(Ended::Babble { said: error.to_string() }),
    })
}

/// Runs a command to its end or to the limit; its standard output if it ended well.
fn watch(mut command: Command, limit: Duration) -> Result<Result<Vec<u8>, Ended>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("the child cannot be started")?;
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait(&mut child, limit)?;
    let read = |thread: thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let Some(status) = status else {
        return Ok(Err(Ended::Stopped { after_s: limit.as_secs() }));
    };
    let (out, err) = (read(out), read(err));
    if status.success() {
        return Ok(Ok(out));
    }
    let said = String::from_utf8_lossy(&err).lines().last().unwrap_or_default().trim().to_owned();
    Ok(Err(match status.signal() {
        Some(signal) => Ended::Signal { signal, said },
        None => Ended::Status { status: status.code().unwrap_or(-1), said },
    }))
}

/// Reads a pipe to its end, so that the child never waits for us.
fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // A pipe that breaks ends the output; the child's status says why.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut all));
        all
    })
}

/// `None`: the limit is over, and the child was killed.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The command line that gives a child the same arguments.
fn flags(args: &StressArgs) -> Vec<OsString> {
    let model = &args.model;
    let mut all: Vec<OsString> = vec!["stress".into(), "--play-only".into()];
    let mut flag = |name: &'static str, value: Option<OsString>| {
        if let Some(value) = value {
            all.extend([name.into(), value]);
        }
    };
    let text = |value: &dyn fmt::Display| Some(OsString::from(value.to_string()));
    flag("--sessions", text(&args.sessions));
    flag("--rounds", text(&args.rounds));
    flag("--ctx", text(&args.ctx));
    flag("--max-tokens", text(&args.max_tokens));
    flag("--concurrency", text(&args.concurrency));
    flag("--timeout", text(&args.timeout));
    flag("--seed", text(&args.seed));
    flag("--order-seed", text(&args.order_seed));
    flag("--unsafe-run-mutant", args.unsafe_run_mutant.and_then(|m| text(&m.slug())));
    flag("--delay-us", args.gpu.delay_us.and_then(|us| text(&us)));
    flag("--order", args.order.map(name));
    flag("--model", model.model.as_ref().map(|dir| dir.clone().into_os_string()));
    flag("--max-model-len", model.max_model_len.and_then(|n| text(&n)));
    flag("--num-pages", model.num_pages.and_then(|n| text(&n)));
    flag("--index-k", model.index_k.map(name));
    flag("--kv-cache-dtype", model.kv_cache_dtype.map(name));
    flag("--rounding", Some(name(model.rounding)));
    flag("--device", Some(device(model.device)));
    flag("--graph", Some(name(model.graph)));
    flag("--schedule", Some(name(model.schedule)));
    flag("--pdl", Some(name(model.pdl)));
    flag("--index-reader", Some(name(model.index_reader)));
    flag("--decode-buckets", text(&model.decode_buckets));
    flag("--canary", model.instruments.canary.and_then(|mib| text(&mib)));
    flag("--diff-every", model.instruments.diff_every.and_then(|n| text(&n)));
    flag("--inject", model.instruments.inject.and_then(|fault| text(&fault)));
    flag("--threads", model.threads.and_then(|n| text(&n)));
    all
}

fn name(value: impl ValueEnum) -> OsString {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default().into()
}

fn device(device: Device) -> OsString {
    match device {
        Device::Auto => "auto".into(),
        Device::Cpu => "cpu".into(),
        Device::Cuda(ordinal) => format!("cuda:{ordinal}").into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Command, Duration, Ended, StressArgs, flags, watch};
    use crate::cli::{Cli, Command as Sub};

    fn parsed(words: &[String]) -> StressArgs {
        let all = std::iter::once("flashlane".to_owned()).chain(words.iter().cloned());
        match Cli::try_parse_from(all).unwrap().command {
            Sub::Stress(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_child_gets_the_same_arguments() {
        let words = "stress --sessions 3 --rounds 2 --ctx 99 --max-tokens 17 --concurrency 5 --timeout 9 --seed 4 --order-seed 6 \
                     --unsafe-run-mutant dropped-join --delay-us 70 --model /m --max-model-len 512 --num-pages 40 --index-k fp4 \
                     --kv-cache-dtype bf16 --rounding off --device cuda:1 --graph off --schedule serial --pdl off --index-reader simple --decode-buckets 2,6 --canary 3 \
                     --diff-every 7 --threads 2 --inject row:seed=2,layer=1,rate=0.5 --play-only";
        let args = parsed(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let words: Vec<String> = flags(&args).into_iter().map(|word| word.into_string().unwrap()).collect();
        assert_eq!(format!("{:?}", parsed(&words)), format!("{args:?}"));
    }

    fn shell(script: &str, limit: u64) -> Result<Vec<u8>, Ended> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        watch(command, Duration::from_secs(limit)).unwrap()
    }

    #[test]
    fn how_a_child_ends_is_told() {
        assert_eq!(shell("echo yes", 60), Ok(b"yes\n".to_vec()));
        let said = || "no more".to_owned();
        let status = Ended::Status { status: 3, said: said() };
        assert_eq!(shell("echo first >&2; echo no more >&2; exit 3", 60), Err(status));
        let signal = Ended::Signal { signal: 11, said: said() };
        assert_eq!(shell("echo no more >&2; kill -SEGV $$", 60), Err(signal));
        // The shell is replaced, so that nobody is left holding the pipes.
        assert_eq!(shell("exec sleep 600", 1), Err(Ended::Stopped { after_s: 1 }));
        // More than a pipe holds.
        assert_eq!(shell("head -c 300000 /dev/zero", 60).unwrap().len(), 300_000);
    }
}
