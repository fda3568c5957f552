//! What each subcommand does.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use flashlane::checkpoint::{self, Checkpoint, DenseFormat, ExpertFormat, QuantizeOptions};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::net::TcpListener;

use crate::cli::{ChatArgs, Cli, Command, Dense, Experts, InspectArgs, LogFormat, QuantizeArgs, ServeArgs};
use crate::http::{App, serve};
use crate::{engine, eval, matrix, op, report, stress, tasks, terminal, verify};

/// Runs the command of `cli` to its end.
///
/// # Errors
/// One sentence for the user, with its causes.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    log(cli.log_format);
    match cli.command {
        Command::Serve(args) => runtime()?.block_on(serve_http(args))?,
        Command::Chat(args) => chat(&args)?,
        Command::Verify(args) => return verify::run(&args),
        Command::Inspect(args) => inspect(&args)?,
        Command::Quantize(args) => quantize(&args)?,
        Command::Tasks(args) => tasks::run(&args)?,
        Command::Stress(args) => return stress::command(&args),
        Command::Eval(args) => return eval::command(&args),
        Command::Op(args) => op::command(&args)?,
        Command::Matrix(args) => return matrix::command(&args),
    }
    Ok(ExitCode::SUCCESS)
}

/// The reader of our output has gone, as `head` does: nothing is wrong.
pub fn reader_gone(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        json.or_else(|| cause.downcast_ref::<io::Error>().map(io::Error::kind))
    };
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}

fn log(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A second subscriber is refused, which only happens in tests.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the async runtime could not be started")
}

async fn serve_http(args: ServeArgs) -> anyhow::Result<()> {
    if !args.api_key.is_empty() && args.api_key.iter().all(String::is_empty) {
        anyhow::bail!("--api-key is empty: give a key, or leave it out to serve without one");
    }
    let address = (args.host, args.port);
    // Before the model is loaded: a taken port should not cost minutes.
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {}:{}", args.host, args.port))?;
    let model = args.model.clone();
    let loaded = tokio::task::spawn_blocking(move || engine::build(&model)).await??;
    let name = args.served_model_name.clone().unwrap_or(loaded.name);
    let app = App::new(loaded.engine, loaded.tokenizer, name, loaded.defaults, args.options());
    let signals = signals()?;
    serve(listener, Arc::new(app), signals).await.context("the server has failed")
}

/// Resolves at the first SIGTERM or SIGINT; the second ends the process at once.
fn signals() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        tokio::spawn(async move {
            tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
            tracing::warn!("second signal: ending at once");
            std::process::exit(1);
        });
    })
}

fn chat(args: &ChatArgs) -> anyhow::Result<()> {
    let loaded = engine::build(&args.model)?;
    let session = terminal::Session::new(loaded, args);
    let runtime = runtime()?;
    let result = terminal::converse(&runtime, session, &mut io::stdin().lock(), &mut io::stdout().lock());
    result.context("the terminal is gone")
}

fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let report = Checkpoint::open(&args.dir)?.inspect();
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report::write(&report, &mut out)?;
    }
    Ok(())
}

fn quantize(args: &QuantizeArgs) -> anyhow::Result<()> {
    let experts = match args.experts {
        Experts::Nvfp4 => ExpertFormat::Nvfp4,
        Experts::Mxfp4 => ExpertFormat::Mxfp4,
    };
    let dense = match args.dense {
        Dense::Fp8 => DenseFormat::Fp8,
        Dense::Bf16 => DenseFormat::Bf16,
    };
    let style = ProgressStyle::with_template("{bytes}/{total_bytes} {wide_bar} {eta} {msg}")?;
    let bar = ProgressBar::new(0).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    let options =
        QuantizeOptions { shard_bytes: args.max_shard_size, ..QuantizeOptions::new(experts, dense) };
    let interrupted = Arc::new(AtomicBool::new(false));
    let runtime = runtime()?;
    let signals = runtime.block_on(async { signals() })?;
    runtime.spawn({
        let interrupted = Arc::clone(&interrupted);
        async move {
            signals.await;
            interrupted.store(true, Ordering::Relaxed);
        }
    });
    checkpoint::quantize(&args.input, &args.output, &options, |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        bar.set_message(progress.tensor.to_owned());
        if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    bar.finish_and_clear();
    println!("{} written", args.output.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;

    #[test]
    fn a_reader_that_has_gone_is_known_behind_json_too() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        let gone = |error: anyhow::Error| super::reader_gone(&error.context("while writing"));
        assert!(gone(pipe().into()) && gone(serde_json::Error::io(pipe()).into()));
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        assert!(!gone(full().into()) && !gone(serde_json::Error::io(full()).into()));
    }
}
