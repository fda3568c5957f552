//! The soak at a few seconds, in a process of its own: memory and descriptors are a process's.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_soak_plays_leaves_and_is_flat() {
    let flags = ["--soak", "8", "--concurrency", "4", "--sessions", "4", "--rounds", "1", "--ctx", "120"];
    let output = Command::new(env!("CARGO_BIN_EXE_flashlane"))
        .env("RUST_LOG", "error")
        .args(["stress", "--json", "--device", "cpu", "--max-tokens", "64"])
        .args(flags)
        .output()
        .unwrap();
    let soak: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &soak["failures"]), (Some(0), &Value::Array(Vec::new())), "{soak}");
    let count = |field: &str| soak[field].as_u64().unwrap();
    assert!(count("played") > 0 && count("left") > 0 && count("steps") > 0, "{soak}");
    assert_eq!(soak["quarters"].as_array().unwrap().len(), 4);
    assert!(soak["samples"].as_array().unwrap().iter().any(|s| s["running"].as_u64() > Some(0)), "{soak}");
}
