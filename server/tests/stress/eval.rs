//! The evaluation at the smallest count that says something.

use clap::Parser;
use flashlane_server::cli::{Cli, Command};
use flashlane_server::eval;

#[test]
fn a_kind_is_measured_and_compared_between_formats() {
    let flags = ["flashlane", "eval", "--count", "8", "--only", "trail", "--concurrency", "4"];
    let Command::Eval(args) = Cli::try_parse_from(flags).unwrap().command else { panic!("eval") };
    let table = eval::run(&args).unwrap();
    assert_eq!(table.rows.len(), 1);
    let trail = &table.rows[0];
    assert_eq!((trail.name, trail.right.of), ("trail", 8));
    assert!(trail.right.count >= 6, "{trail:?}");
    assert_eq!(table.frame_errors.count, 0);
    let formats: Vec<_> = table.agreement.iter().map(|a| (a.index_k, a.with, a.same.of)).collect();
    assert_eq!(formats, [("fp8", "bf16", 2), ("fp4", "bf16", 2)]);
}

fn args(flags: &[&str]) -> eval::EvalArgs {
    let flags = ["flashlane", "eval"].iter().chain(flags);
    let Command::Eval(args) = Cli::try_parse_from(flags).unwrap().command else { panic!("eval") };
    args
}

/// The detector's own test: the model fails as often as its index, and no more.
#[test]
fn faults_of_the_index_cost_what_they_must() {
    let ladder = eval::climb(&args(&["--ladder", "--count", "32", "--concurrency", "8"])).unwrap();
    assert!(ladder.right.count >= 30, "{ladder:?}");
    assert_eq!(ladder.rungs.len(), 6);
    assert!(ladder.passed(), "{ladder:?}");
    let failed = |layer: usize| -> Vec<usize> {
        ladder.rungs.iter().filter(|rung| rung.layer == layer).map(|rung| rung.failed.count).collect()
    };
    for layer in [2, 4] {
        assert!(failed(layer).is_sorted() && failed(layer)[2] * 2 > ladder.right.count, "{ladder:?}");
    }
    let mut text = Vec::new();
    ladder.write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("layer 4, 100%") && text.contains("within"), "{text}");
}

#[test]
fn a_knocked_out_layer_is_missed_where_it_is_needed() {
    let table = eval::run(&args(&["--knock-out", "4", "--only", "recall", "--count", "16"])).unwrap();
    assert_eq!((table.knocked_out.as_slice(), table.agreement.len()), ([4].as_slice(), 0));
    // What the sliding window still holds is found.
    assert!(table.rows[0].right.count <= 10, "{table:?}");
    let echo = eval::run(&args(&["--knock-out", "4", "--only", "echo", "--count", "16"])).unwrap();
    assert_eq!(echo.rows[0].right.count, echo.rows[0].right.of);
    let refused = eval::run(&args(&["--knock-out", "1", "--only", "echo"])).unwrap_err().to_string();
    assert!(refused.contains("layer 1 cannot be knocked out: expected a layer with"), "{refused}");
}
