//! The binary: what it prints and how it exits.

use std::process::{Command, Output};

use serde_json::Value;

fn stress(flags: &[&str]) -> Output {
    let small = ["stress", "--sessions", "2", "--rounds", "1", "--ctx", "120", "--max-tokens", "64"];
    Command::new(env!("CARGO_BIN_EXE_flashlane"))
        .env("RUST_LOG", "error")
        .args(small)
        .args(flags)
        .output()
        .unwrap()
}

#[test]
fn a_clean_run_exits_0_with_the_reported_lines() {
    let output = stress(&["--tag", "clean"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("tag=clean in process sessions=2 seed=0 index_k=bf16\nwall="), "{text}");
    assert!(
        text.contains(
            "\nCORRUPTION sessions: 0/2 = 0%  (leak=0 no_tool=0 error=0 ok-ish[done/maxrounds]=2)\n"
        )
    );
    assert!(text.contains("\ndiffering_tokens=0 of "), "{text}");
}

#[test]
fn tokens_that_differ_exit_1_and_are_in_the_json() {
    let flags =
        ["--unsafe-run-mutant", "free-by-host-order", "--order", "worst", "--order-seed", "5", "--json"];
    let output = stress(&flags);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["comparison"]["differing_tokens"].as_u64() > Some(0), "{report}");
    assert_eq!((&report["mutant"], &report["order"]), (&"free-by-host-order".into(), &"worst".into()));
}

/// What a forced run on a GPU says to the process that scores it.
#[test]
fn a_child_prints_its_sessions() {
    let output = stress(&["--play-only", "--unsafe-run-mutant", "dropped-join", "--order", "serial"]);
    assert_eq!(output.status.code(), Some(0));
    let played: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sessions = played["sessions"].as_array().unwrap();
    assert_eq!((sessions.len(), &played["watched"]), (2, &Value::Null));
    assert!(sessions.iter().all(|s| s["answers"][0]["ids"].as_array().unwrap().len() > 10), "{played}");
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let refused = |flags: &[&str]| {
        let output = stress(flags);
        assert!(!output.status.success(), "{flags:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["--unsafe-run-mutant", "free-by-guess"]).contains("expected one of"));
    assert!(refused(&["--order", "any", "--url", "http://127.0.0.1:1"]).contains("cannot be used with"));
    assert!(refused(&["--url", "https://127.0.0.1"]).contains("only http://"));
    assert!(refused(&["--max-rate", "0.1"]).contains("--url"));
    assert!(refused(&["--poison"]).contains("--unsafe-run-mutant"));
    assert!(refused(&["--sweep", "--steps", "0"]).contains("--steps must be at least 1"));
    assert!(refused(&["--steps", "5"]).contains("--sweep"));
    assert!(refused(&["--mutants", "--order", "any"]).contains("cannot be used with"));
    assert!(refused(&["--mutant", "dropped-join"]).contains("--unsafe-run-mutant dropped-join"));
    if cfg!(not(feature = "cuda")) {
        assert!(refused(&["--mutants", "--device", "cuda:0"]).contains("without CUDA"));
    }
    assert!(refused(&["--soak", "5", "--sweep"]).contains("cannot be used with"));
    let nobody = refused(&["--url", "http://127.0.0.1:1"]);
    assert!(nobody.contains("100% of the sessions are corrupt"), "{nobody}");
}
