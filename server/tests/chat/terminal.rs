//! The terminal chat, line by line.

use std::sync::Arc;

use clap::Parser;
use flashlane::engine::EngineError;
use flashlane_server::cli::{Cli, Command};
use flashlane_server::engine::Loaded;
use flashlane_server::http::Defaults;
use flashlane_server::terminal::{Session, converse};

use crate::support::{Scripted, ids, tokenizer};

fn talk(engine: Scripted, thinking: bool, input: &str) -> (String, Arc<Scripted>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let Command::Chat(args) = Cli::try_parse_from(["flashlane", "chat", "--system", "S"]).unwrap().command
    else {
        panic!("chat")
    };
    let engine = Arc::new(engine);
    let tokenizer = tokenizer();
    let defaults = Defaults { thinking, ..Defaults::default() };
    let loaded = Loaded::new(engine.clone(), tokenizer, "tiny".into(), defaults, &args.model);
    let mut out = Vec::new();
    converse(&runtime, Session::new(loaded, &args), &mut input.as_bytes(), &mut out).unwrap();
    (String::from_utf8(out).unwrap(), engine)
}

#[test]
fn answers_stream_and_the_conversation_grows_until_reset() {
    let (out, engine) = talk(Scripted::saying("why§yes¶"), true, "one\ntwo\n/reset\nthree\n/quit\nfour\n");
    assert_eq!(out.matches("why\n---\nyes\n").count(), 3, "{out}");
    let prompts: Vec<Vec<u32>> = engine.requests().into_iter().map(|request| request.prompt).collect();
    let contains = |prompt: &Vec<u32>, text: &str| prompt.windows(text.len()).any(|w| w == ids(text));
    assert!(contains(&prompts[1], "one") && contains(&prompts[1], "yes") && contains(&prompts[1], "two"));
    assert!(!contains(&prompts[2], "two") && contains(&prompts[2], "three"));
    assert_eq!(prompts.len(), 3, "nothing after /quit");
}

#[test]
fn a_refused_question_is_said_and_forgotten() {
    let refusal = EngineError::QueueFull { queued: 1, limit: 1 };
    let (out, _) = talk(Scripted::refusing(refusal), false, "one\n");
    assert!(out.contains("the queue is full"), "{out}");
    let (out, _) = talk(Scripted::saying("x¶").with_max_model_len(20), false, &"long ".repeat(20));
    assert!(out.contains("/reset starts over"), "{out}");
}
