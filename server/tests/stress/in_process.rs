//! Sessions in company against the same sessions alone, through the real engine.

use clap::Parser;
use flashlane_server::cli::{Cli, Command};
use flashlane_server::stress::{self, Against, Report, StressArgs};

pub(crate) fn args(flags: &[&str]) -> StressArgs {
    let small = ["flashlane", "stress", "--rounds", "1", "--ctx", "160", "--max-tokens", "64"];
    match Cli::try_parse_from(small.iter().chain(flags)).unwrap().command {
        Command::Stress(args) => args,
        other => panic!("{other:?}"),
    }
}

fn run(flags: &[&str]) -> Report {
    stress::run(&args(flags)).unwrap()
}

#[test]
fn the_true_step_gives_the_same_tokens_alone_and_in_company() {
    for flags in [&["--sessions", "6"][..], &["--sessions", "4", "--order", "any", "--order-seed", "3"]] {
        let report = run(flags);
        let comparison = report.comparison.as_ref().unwrap();
        assert_eq!((comparison.differing_tokens, report.errors.len()), (0, 0), "{report:?}");
        assert!(comparison.compared_tokens > 100, "{comparison:?}");
        assert_eq!(report.failure(), None);
    }
}

#[test]
fn a_mutant_is_silent_in_append_order_and_corrupts_in_others() {
    let mutant = ["--sessions", "3", "--unsafe-run-mutant", "free-by-host-order", "--order-seed", "5"];
    let with = |order| run(&[&mutant[..], &["--order", order]].concat());
    assert_eq!(with("serial").comparison.unwrap().differing_tokens, 0);
    for order in ["any", "worst"] {
        let report = with(order);
        let comparison = report.comparison.as_ref().unwrap();
        assert!(comparison.differing_tokens > 0, "{report:?}");
        assert!(report.failure().unwrap().contains("tokens differ"), "{report:?}");
        let mut against = comparison.places.iter().filter(|place| place.against == Against::Alone);
        assert_eq!(against.clone().count(), comparison.differing_sessions);
        assert!(against.all(|p| p.length_mod_4 == p.length % 4 && p.expected != p.found), "{comparison:?}");
    }
}

#[test]
fn one_session_at_a_time_repeats_bit_by_bit() {
    let flags =
        ["--sessions", "2", "--concurrency", "1", "--unsafe-run-mutant", "dropped-join", "--order-seed", "2"];
    assert_eq!(run(&flags).comparison, run(&flags).comparison);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_that_was_named_is_not_replaced_by_the_simulator() {
    let forced = args(&["--sessions", "1", "--unsafe-run-mutant", "dropped-join", "--device", "cuda:0"]);
    let refused = stress::run(&forced).unwrap_err().to_string();
    assert!(refused.contains("--device cuda:0: this build is without CUDA"), "{refused}");
}

#[test]
fn a_mutant_is_refused_unless_forced() {
    let refused =
        |slug: &str| format!("{:#}", stress::run(&args(&["--sessions", "1", "--mutant", slug])).unwrap_err());
    let order = refused("free-by-host-order");
    assert!(order.contains("not free of hazards") && order.contains("--unsafe-run-mutant"), "{order}");
    assert!(refused("baked-length").contains("the check of purity finds it"));
    assert!(refused("shared-arena").contains("the check of loop finds it"));
}

#[test]
fn a_token_is_placed_in_its_row_and_look_up() {
    let report = run(&["--sessions", "4", "--unsafe-run-mutant", "free-by-host-order", "--order", "worst"]);
    let places = report.comparison.unwrap().places;
    assert!(!places.is_empty());
    assert!(places.iter().all(|place| place.row < place.bucket && place.length > 160), "{places:?}");
}
