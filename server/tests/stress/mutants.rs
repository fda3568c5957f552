//! The tables of docs/proof.md and the commands that they name, at reduced counts.

use clap::Parser;
use flashlane::step::{Check, Mutant};
use flashlane_server::cli::{Cli, Command};
use flashlane_server::stress::{Order, Ran, StressArgs, Sweep, Table, found_table};

use super::in_process::args;

const PROOF: &str = include_str!("../../../docs/proof.md");

/// The command of the docs that has this flag.
fn documented(flag: &str) -> StressArgs {
    let command =
        PROOF.lines().find(|line| line.starts_with("flashlane stress") && line.contains(flag)).unwrap();
    let words = command.split('#').next().unwrap().split_whitespace();
    match Cli::try_parse_from(words).unwrap().command {
        Command::Stress(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_docs_say_what_finds_each_mutant() {
    let table = found_table(&Table::found(&documented("--mutants")).unwrap());
    assert!(PROOF.contains(&table), "docs/proof.md is not up to date:\n{table}");
}

/// Cells of a row of the docs' table of what ran.
fn row(step: &str, order: Order) -> Vec<&'static str> {
    let order = format!("{order:?}").to_lowercase();
    let cells =
        |line: &'static str| line.split('|').map(str::trim).filter(|c| !c.is_empty()).collect::<Vec<_>>();
    let is = |cells: &Vec<&str>| cells.len() == 7 && cells[0] == step && cells[1] == order;
    PROOF.lines().map(cells).find(is).unwrap_or_else(|| panic!("no row {step} {order}"))
}

/// Where the docs have no wrong step or token, there is none; where they have some, there are some. One session at a time, so
/// that the run repeats.
#[test]
fn each_mutant_does_what_the_docs_say() {
    let table =
        Table::run(&args(&["--mutants", "--sessions", "1", "--concurrency", "1", "--order-seed", "7"]))
            .unwrap();
    assert_eq!((table.ran.len(), table.failure()), (3 * (1 + Mutant::ALL.len()), None));
    for Ran { mutant, order, wrong_steps, differing_tokens, first, .. } in &table.ran {
        let step = mutant.map_or_else(|| "true".to_owned(), |slug| format!("`{slug}`"));
        let cells = row(&step, *order);
        let none = cells[3].starts_with("0 of");
        assert_eq!((none, none), (*differing_tokens == 0, first.is_none()), "{step} {order:?}: {cells:?}");
        assert_eq!(cells[2].starts_with("0 of"), *wrong_steps == 0, "{step} {order:?}: {cells:?}");
        let baked = mutant.is_some_and(|slug| {
            let mutant: Mutant = slug.parse().unwrap();
            mutant == Mutant::SerialClobber || matches!(mutant.check(), Check::Purity | Check::Layout)
        });
        assert_eq!(none, mutant.is_none() || (*order == Order::Serial && !baked), "{step} {order:?}");
    }
}

#[test]
fn the_true_step_keeps_its_tokens_in_every_format_and_batch() {
    let sweep =
        Sweep::run(&args(&["--sweep", "--concurrency", "3", "--steps", "60", "--order-seed", "7"])).unwrap();
    let cells: Vec<_> = sweep.cells.iter().map(|c| (c.index_k, c.concurrency)).collect();
    let formats = ["bf16", "fp8", "fp4"].into_iter();
    assert_eq!(cells, formats.flat_map(|k| [1, 2, 3].map(|n| (k, n))).collect::<Vec<_>>());
    assert!(
        sweep.cells.iter().all(|c| c.steps >= 60 && c.compared_tokens > 60 && c.differing_tokens == 0),
        "{sweep:?}"
    );
    assert_eq!(sweep.failure(), None);
    assert!(documented("--sweep").steps.is_none_or(|steps| steps >= 1000));
}
