//! The same sessions over HTTP against this server on a loopback port.

use std::sync::Arc;

use flashlane_server::engine;
use flashlane_server::http::{App, ServerOptions, serve};
use flashlane_server::sessions::Class;
use flashlane_server::stress;
use tokio::net::TcpListener;

use crate::in_process::args;

#[test]
fn a_server_gives_what_the_engine_gives() {
    let flags = ["--sessions", "3", "--max-num-seqs", "3"];
    let local = stress::run(&args(&flags)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let loaded = engine::build(&args(&flags).model).unwrap();
    let options = ServerOptions { api_keys: vec!["key".into()], ..ServerOptions::default() };
    let app = Arc::new(App::new(loaded.engine, loaded.tokenizer, "tiny".into(), loaded.defaults, options));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    runtime.spawn(serve(listener, app, std::future::pending()));

    let asked = |more: &[&str]| stress::run(&args(&[&flags, &["--url", &url][..], more].concat())).unwrap();
    let remote = asked(&["--model-name", "tiny", "--api-key", "key"]);
    assert_eq!((remote.failure(), &remote.counts), (None, &local.counts), "{remote:?}");
    assert_eq!((remote.wrong_value, remote.wrong_tool), (local.wrong_value, local.wrong_tool));
    assert!(remote.comparison.is_none());

    let refused = asked(&["--model-name", "tiny", "--api-key", "wrong"]);
    assert_eq!(refused.counts[Class::Error.name()], 3);
    assert!(refused.errors[0].error.starts_with("401"), "{:?}", refused.errors);
    assert!(refused.failure().is_some());
}
