//! The subcommands that need no server: the prompts that `flashlane chat` shows, and the memory of `flashlane quantize`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A test may panic.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use flashlane::checkpoint::{Checkpoint, ModelConfig, synthetic};

fn flashlane() -> Command {
    Command::new(env!("CARGO_BIN_EXE_flashlane"))
}

fn chat(input: &str) -> String {
    let mut chat = flashlane()
        .arg("chat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    String::from_utf8(chat.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn the_prompts_that_chat_shows_work() {
    let greeting = chat("");
    let shown: Vec<&str> = greeting.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(shown.len(), 3, "{greeting}");
    let answers = chat(&shown.iter().map(|prompt| format!("{prompt}\n")).collect::<String>());
    let answers: Vec<&str> = answers.lines().filter_map(|line| line.strip_prefix("> ")).collect();
    assert!(answers[0].starts_with("I am the built-in test model of flashlane"), "{answers:?}");
    assert!(answers[1].starts_with("Declare the tool in the tools field of your request"), "{answers:?}");
    assert_eq!(answers[2], "7Q2Z9K");
}

/// Most memory of a conversion, in KiB; the mapped input counts, and is the same in every run.
fn peak(input: &Path, output: &Path, shard: &str) -> u64 {
    let mut run = flashlane()
        .args(["quantize", "--max-shard-size", shard])
        .args([input, output])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    while run.try_wait().unwrap().is_none() {
        // Only ever grows. Gone once the process has ended.
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        most = line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(most);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(run.wait().unwrap().success());
    most
}

#[test]
fn quantize_holds_one_shard_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    std::fs::create_dir(&input).unwrap();
    // 75 MB of experts, which become 21.
    let config = ModelConfig { n_routed_experts: 256, ..synthetic::tiny_config() };
    synthetic::write(&input, &config, 3).unwrap();
    let small = peak(&input, &dir.path().join("small"), "1000000");
    let large = peak(&input, &dir.path().join("large"), "100000000");
    assert!(small + 10_000 < large, "one file takes {large} KiB, files of 1 MB {small} KiB");
    let inspect = |name: &str| Checkpoint::open(&dir.path().join(name)).unwrap().inspect().bytes;
    assert_eq!(inspect("small"), inspect("large"));
}
