//! The `flashlane` binary.

use std::process::ExitCode;

use clap::Parser;
use flashlane_server::cli::Cli;
use flashlane_server::commands;

fn main() -> ExitCode {
    match commands::run(Cli::parse()) {
        Ok(code) => code,
        Err(error) if commands::reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flashlane: {error:#}");
            ExitCode::FAILURE
        }
    }
}
