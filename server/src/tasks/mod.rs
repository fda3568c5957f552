//! `flashlane tasks`: the tasks of the built-in model, each with its oracle.
//!
//! One generator feeds the trainer (`--stream`), the stress harness, the evaluation and the tests (items). All values are random
//! and the oracle holds by construction. Items are rendered here on token ids, exactly as the server renders their messages.
//! It runs no model.

pub mod calls;
pub mod conversation;
pub mod export;
pub mod items;
pub mod lexicon;
pub mod session;
mod stream;
pub mod tools;
pub mod turns;
mod wording;
pub mod world;

use std::io::Write;

use anyhow::{Result, ensure};
use clap::Args;

use items::{Kind, Shape};
use lexicon::Lexicon;

/// Generate tasks of the built-in model, with their answers.
#[derive(Args, Clone, Debug)]
pub struct TasksArgs {
    /// What the items ask.
    #[arg(long, value_enum, default_value = "walk")]
    kind: Kind,
    /// Seed; an item depends on the seed and its index alone.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of items, or of records with --stream (0: without end).
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// Tokens of context: facts amid filler. Exact prompt length for needles; record length with --stream.
    #[arg(long, default_value_t = 300)]
    ctx: usize,
    /// Rounds of a walk.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Render for thinking mode.
    #[arg(long)]
    thinking: bool,
    /// One JSON object per item instead of its text.
    #[arg(long)]
    json: bool,
    /// Binary training records on standard output.
    #[arg(long)]
    stream: bool,
    /// Training stage of the records: 0 short sections, 1 distance, 2 full mix, 3 long contexts.
    #[arg(long, default_value_t = 2)]
    curriculum: usize,
    /// Threads of --stream.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// Writes the items or records to standard output.
pub fn run(args: &TasksArgs) -> Result<()> {
    ensure!(args.ctx <= 65_536, "--ctx is {}, expected at most 65536", args.ctx);
    let lexicon = Lexicon::load()?;
    if args.stream {
        ensure!(args.ctx >= 128, "--ctx is {}, expected at least 128 for training records", args.ctx);
        return stream::run(&lexicon, args.curriculum, args.ctx, args.seed, args.threads, args.count);
    }
    let shape = Shape { kind: args.kind, ctx: args.ctx, rounds: args.rounds.max(1), thinking: args.thinking };
    let mut out = std::io::stdout().lock();
    for index in 0..args.count as u64 {
        let item = items::item(&lexicon, shape, args.seed, index);
        if args.json {
            writeln!(out, "{}", export::item(&item, shape, args.seed, index)?)?;
        } else {
            writeln!(out, "{}", lexicon.decode(&item.conv.ids)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
