//! The evaluation at the smallest count that says something.

use clap::Parser;
use flashlane_server::cli::{Cli, Command};
use flashlane_server::eval::{self, Plan, Rung};

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

/// The detector's own test: the model fails as often as single faults say, and not as often as other rates say.
#[test]
fn faults_of_the_index_cost_what_they_must() {
    let flags = ["--ladder", "--count", "24", "--concurrency", "24", "--seed", "9000001"];
    let plan = Plan { prompt: 160, characters: 4, layers: vec![4], rates: vec![0.1, 1.0] };
    let ladder = eval::climb(&args(&flags), &plan).unwrap();
    assert_eq!((ladder.right.of, ladder.rows, ladder.layers.len()), (24, 40, 1));
    assert!(ladder.right.count >= 23, "{ladder:?}");
    let layer = &ladder.layers[0];
    // In the last layer a token's rows change nothing but what that token says: not by measurement alone.
    let singles = &layer.singles;
    assert_eq!((singles.elsewhere, layer.prompt.count, singles.characters.len()), (0, 0, 4), "{ladder:?}");
    assert!(singles.characters.iter().all(|c| c.of == ladder.right.count && c.count > 0), "{ladder:?}");
    assert!(ladder.passed(), "{ladder:?}");
    let [tenth, all] = &layer.rungs[..] else { panic!("{ladder:?}") };
    assert!(!Rung { failed: tenth.failed, ..all.clone() }.agrees(), "{ladder:?}");
    assert!(!Rung { failed: all.failed, ..tenth.clone() }.agrees(), "{ladder:?}");
    let mut text = Vec::new();
    ladder.write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("100% of all tokens") && text.contains("within"), "{text}");
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
