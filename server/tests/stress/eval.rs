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
