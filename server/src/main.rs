//! The `flashlane` binary.

use clap::Parser;
use flashlane_server::tasks;

#[derive(Parser)]
#[command(version, about)]
enum Cli {
    Tasks(tasks::TasksArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse() {
        Cli::Tasks(args) => tasks::run(&args),
    }
}
