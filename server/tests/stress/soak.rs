//! A long run under load: 64 clients over HTTP that ask, stream and hang up. Pools, memory and file descriptors stay flat, and
//! an answer is the same each time.
//!
//! `FLASHLANE_SOAK_SECONDS=300 cargo test -p flashlane-server --test stress soak -- --ignored --nocapture`

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flashlane::engine::Generate;
use flashlane_server::engine;
use flashlane_server::http::{App, ServerOptions, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::in_process::args;

const CLIENTS: usize = 64;

/// What clients ask for, by number: prompts of a few tokens up to several blocks.
fn body(kind: usize, stream: bool) -> String {
    let filler = "The river runs past the old mill and the green hill. ".repeat(kind % 5 * kind % 23);
    let question = ["What are you?", "What can you do?", "Who made you?"][kind % 3];
    format!(
        r#"{{"model": "tiny", "stream": {stream}, "max_tokens": 48, "temperature": 0,
        "messages": [{{"role": "user", "content": "{filler}{question}"}}]}}"#
    )
}

async fn ask(address: SocketAddr, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

#[derive(Default)]
struct Seen {
    answers: Mutex<HashMap<usize, String>>,
    answered: AtomicUsize,
    hung_up: AtomicUsize,
}

/// Asks until `end`; every third request is a stream that the client leaves after some of it.
async fn client(address: SocketAddr, number: usize, end: Instant, seen: Arc<Seen>) {
    for round in 0.. {
        if Instant::now() >= end {
            return;
        }
        let kind = (number * 7 + round * 13) % 40;
        let leaves = (number + round).is_multiple_of(3);
        let mut stream = ask(address, &body(kind, leaves)).await;
        let mut reply = Vec::new();
        if leaves {
            let mut part = vec![0; 40 * (kind + 1)];
            let _read = stream.read(&mut part).await;
            seen.hung_up.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        stream.read_to_end(&mut reply).await.unwrap();
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        let json: serde_json::Value =
            serde_json::from_str(&reply[reply.find("\r\n\r\n").unwrap()..]).unwrap();
        let content = json["choices"][0]["message"].to_string();
        let first = seen.answers.lock().unwrap().entry(kind).or_insert_with(|| content.clone()).clone();
        assert_eq!(content, first, "the answer to {kind} is not what it was");
        seen.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Resident kilobytes and open file descriptors of this process.
fn usage() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (kilobytes, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

/// Waits until everything has come back: pages, slots, and the connections that clients have left.
fn settled(engine: &dyn Generate, descriptors: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (s, open) = (engine.stats(), usage().1);
        let free = (s.free_blocks, s.free_windows, s.free_slots);
        let whole = free == (s.total_blocks, s.total_windows, s.total_slots);
        if whole && s.running + s.waiting == 0 && open <= descriptors {
            return;
        }
        assert!(Instant::now() < deadline, "{open} descriptors instead of {descriptors}, {s:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "runs for FLASHLANE_SOAK_SECONDS, 60 if that is not set"]
fn pools_memory_and_descriptors_stay_flat() {
    let seconds = std::env::var("FLASHLANE_SOAK_SECONDS").map_or(60, |s| s.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let flags = ["--max-num-seqs", "64", "--max-model-len", "1024"];
    let loaded = engine::build(&args(&flags).model).unwrap();
    let engine = Arc::clone(&loaded.engine);
    let options = ServerOptions::default();
    let app = Arc::new(App::new(loaded.engine, loaded.tokenizer, "tiny".into(), loaded.defaults, options));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(serve(listener, app, std::future::pending()));

    let (seen, descriptors) = (Arc::new(Seen::default()), usage().1);
    let load = |seconds: u64| {
        let end = Instant::now() + Duration::from_secs(seconds);
        let clients = (0..CLIENTS).map(|n| runtime.spawn(client(address, n, end, Arc::clone(&seen))));
        let clients: Vec<_> = clients.collect();
        clients.into_iter().for_each(|one| runtime.block_on(one).unwrap());
        settled(engine.as_ref(), descriptors);
        usage()
    };
    // What is made once and kept is made in the first part.
    let mut parts = vec![load(seconds / 4)];
    parts.extend((0..3).map(|_| load(seconds / 4)));
    let stats = engine.stats();
    println!("kilobytes and descriptors after each quarter: {parts:?}");
    println!(
        "{} answered, {} left; {stats:?}",
        seen.answered.load(Ordering::Relaxed),
        seen.hung_up.load(Ordering::Relaxed)
    );
    let (first, last) = (parts[0], parts[3]);
    assert!(last.0 <= first.0 + first.0 / 20 + 16_384, "resident kilobytes: {first:?} to {last:?}");
    assert!(stats.aborted > 0 && stats.failed == 0 && stats.blocks_between_decodes <= 1, "{stats:?}");
    assert!(stats.discarded_rows <= stats.finished + stats.aborted, "{stats:?}");
}
