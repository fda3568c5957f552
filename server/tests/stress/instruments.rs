//! The instruments through the command line: silent on the true step, and each fault in its column.

use clap::Parser;
use flashlane_server::cli::{Cli, Command};
use flashlane_server::matrix::{self, Table};
use flashlane_server::stress;

use crate::in_process::args;

#[test]
fn a_watched_run_says_what_it_certifies_and_how_often_tokens_were_wrong() {
    let flags = ["--sessions", "3", "--canary", "4", "--diff-every", "3"];
    let report = stress::run(&args(&flags)).unwrap();
    assert_eq!(report.failure(), None);
    let seen = report.instruments.as_ref().unwrap();
    let (sampled, others) = (&seen.sampled_tokens, &seen.unsampled_tokens);
    assert_eq!((sampled.count, others.count), (0, 0));
    assert!(sampled.of > 5 && others.of > sampled.of, "{seen:?}");
    assert_eq!(sampled.of + others.of, report.comparison.as_ref().unwrap().compared_tokens);
    let mut text = Vec::new();
    report.write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for line in ["\ncanary hits=0 steps=", "\ndiff every=3 steps=", "\nwrong tokens in steps run again: 0/"] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn a_server_has_its_own_instruments() {
    let refused = stress::run(&args(&["--url", "http://127.0.0.1:1", "--canary"])).unwrap_err().to_string();
    assert!(refused.contains("flashlane serve"), "{refused}");
}

fn table(only: &str) -> Table {
    let flags =
        ["flashlane", "matrix", "--sessions", "2", "--rounds", "1", "--diff-every", "2", "--only", only];
    match Cli::try_parse_from(flags).unwrap().command {
        Command::Matrix(args) => matrix::run(&args, |_| Ok(())).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_matrix_says_who_sees_what() {
    let row = table("inject row");
    assert_eq!((row.rows.len(), row.failure()), (1, None));
    let seen = &row.rows[0];
    let (canary, diff) = (seen.canary.as_ref().unwrap(), seen.differential.as_ref().unwrap());
    assert!(canary.hits == 0 && diff.differing == diff.sampled && diff.sampled > 0, "{seen:?}");
    assert!(seen.cannot.iter().any(|why| why.contains("owner's own wrong row")), "{seen:?}");

    let page = &table("inject page").rows[0];
    assert!(page.canary.as_ref().unwrap().hits > 0, "{page:?}");
    assert_eq!(page.differential.as_ref().unwrap().differing, 0, "{page:?}");
}
