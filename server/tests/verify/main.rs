//! `flashlane verify` as a user runs it: exit status, JSON, pictures, and every known bug refused.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use flashlane::step::{Check, Mutant};
use serde_json::Value;

fn verify(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flashlane")).arg("verify").args(args).output().unwrap()
}

fn report(args: &[&str], status: i32) -> Value {
    let output = verify(&[args, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn failed(report: &Value) -> Vec<&str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|c| c["result"] == "failed").map(|c| c["check"].as_str().unwrap()).collect()
}

/// The arena is at most 1.3 times what no plan can do without.
fn near_the_bound(report: &Value) {
    let bytes = |field: &str| report["arena"][field].as_u64().unwrap();
    let (arena, bound) = (bytes("bytes"), bytes("lower_bound_bytes"));
    assert!(bound > 0 && 10 * arena <= 13 * bound, "{arena} bytes, bound {bound}");
}

#[test]
fn the_built_in_model_is_proved_in_every_format_of_index_keys_and_on_either_schedule() {
    for index in ["bf16", "fp8", "fp4"] {
        for schedule in ["forked", "serial"] {
            for step in [&[][..], &["--prefill"]] {
                let report = report(&[&["--index-k", index, "--schedule", schedule], step].concat(), 0);
                assert_eq!((&report["proved"], failed(&report).len()), (&Value::Bool(true), 0));
                near_the_bound(&report);
            }
        }
    }
}

#[test]
fn the_report_has_what_was_counted() {
    let report = report(&["--batch", "3"], 0);
    let number =
        |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(report["step"]["bucket"], "decode 3");
    assert_eq!(report["buckets"], serde_json::json!(["decode 1", "decode 2", "decode 3", "prefill"]));
    assert!(number("/step/edges") >= number("/step/nodes"), "a step with forks");
    assert!(number("/step/critical_path") < number("/step/nodes") && number("/step/width") > 1);
    assert!(number("/proof/pairs") > 1000 && number("/proof/reads") > 100);
    assert!(number("/arena/lower_bound_bytes") <= number("/arena/bytes"));
    assert!(number("/arena/serial_bytes") < number("/arena/unshared_bytes"));
    let loops = report["loops"].as_array().unwrap();
    assert_eq!(loops.iter().map(|l| l["steps_in_flight"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert!(loops.iter().all(|l| l["ordered_pairs_of_buckets"] == 16 && l["proof"]["pairs"].is_u64()));
    assert!(report["milliseconds"]["total"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_full_size_models_are_proved() {
    for model in ["--flash", "--pro"] {
        let report = report(&[model, "--batch", "2"], 0);
        println!("{model}: {}", report["milliseconds"]);
        assert!(report["step"]["nodes"].as_u64().unwrap() > 1000);
        near_the_bound(&report);
    }
}

#[test]
fn every_mutant_is_refused_by_the_check_that_is_there_for_it() {
    for mutant in Mutant::ALL {
        let report = report(&["--mutant", mutant.slug()], 1);
        let failed = failed(&report);
        let expected: &[&str] = match mutant.check() {
            Check::Order => &["order", "value"],
            Check::Loop => &["loop"],
            Check::Purity => &["purity"],
            Check::Layout => &["layout"],
        };
        assert!(failed.iter().any(|f| expected.contains(f)), "{mutant:?}: {failed:?}");
        assert!(!report["hazards"].as_array().unwrap().is_empty());
    }
}

#[test]
fn a_hazard_names_both_operations_their_lanes_bytes_and_common_ancestor() {
    let report = report(&["--mutant", "free-by-host-order"], 1);
    let hazard = &report["hazards"][0];
    let (first, second) = (&hazard["first"], &hazard["second"]);
    assert_ne!(first["lane"], second["lane"]);
    assert_ne!(first["value"], second["value"], "two values in the same bytes");
    assert!(hazard["bytes"]["end"].as_u64() > hazard["bytes"]["start"].as_u64());
    let ancestor = hazard["nearest_common_ancestor"].as_str().unwrap();
    let output = verify(&["--mutant", "free-by-host-order"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [first["op"].as_str().unwrap(), second["op"].as_str().unwrap(), ancestor, "refused"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(!text.contains('\x1b'), "no colour in a pipe");
}

#[test]
fn on_one_stream_a_bug_of_order_cannot_show() {
    for slug in ["free-by-host-order", "dropped-join", "shared-scratch", "pdl-as-order"] {
        report(&["--mutant", slug, "--schedule", "serial"], 0);
    }
    report(&["--mutant", "serial-clobber", "--schedule", "serial"], 1);
}

#[test]
fn the_list_says_what_finds_each_mutant() {
    let list = report(&["--list-mutants"], 0);
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), Mutant::ALL.len());
    assert!(list.iter().all(|m| !m["caught_by"].as_array().unwrap().is_empty()), "{list:?}");
}

#[test]
fn a_picture_of_a_mutant_has_a_red_edge_and_one_of_a_proved_step_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (svg, dot, clean) = (file("a.svg"), file("a.dot"), file("b.svg"));
    assert_eq!(verify(&["--mutant", "dropped-join", "--svg", &svg, "--dot", &dot]).status.code(), Some(1));
    assert_eq!(verify(&["--svg", &clean]).status.code(), Some(0));
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert!(read(&svg).contains("#d00") && read(&dot).contains("color=red"));
    assert!(!read(&clean).contains("#d00"));
}

#[test]
fn wrong_usage_is_neither_proved_nor_hazard() {
    let missing = Path::new("no").join("such").join("directory");
    let picture = missing.join("a.svg");
    let cases: [&[&str]; 7] = [
        &["--flash", "--pro"],
        &["--batch", "0"],
        &["--max-positions", "1000000000"],
        &["--mutant", "no-such-bug"],
        &["--model", missing.to_str().unwrap()],
        &["--svg", picture.to_str().unwrap()],
        &["--list-mutants", "--mutant", "dropped-join"],
    ];
    for args in cases {
        let output = verify(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}
