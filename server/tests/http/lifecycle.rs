//! Clients that leave, engines that refuse, servers that stop.

use std::sync::Arc;
use std::time::Duration;

use flashlane::engine::EngineError;
use flashlane_server::http::ServerOptions;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;

use crate::support::{Act, LONG, Scripted, Server, post, request};

fn chat(stream: bool) -> String {
    let body = format!(
        r#"{{"model": "tiny", "stream": {stream}, "messages": [{{"role": "user", "content": "hi"}}]}}"#
    );
    post("/v1/chat/completions", body)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("within 10 s")
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_request() {
    for (name, stream, script) in [
        ("before the first token", true, vec![Act::Hold]),
        ("while waiting for a whole answer", false, vec![Act::Say("ab"), Act::Hold]),
        ("mid-stream", true, vec![Act::Say("ab"), Act::Hold]),
        ("inside held-back markup", true, vec![Act::Say("ab<¦tool_calls>\n"), Act::Hold]),
    ] {
        for half_close in [false, true] {
            let server = Server::start(Scripted::new(script.clone())).await;
            let mut client = server.connect().await;
            client.send(chat(stream)).await;
            if stream {
                client.until("data: ").await;
            } else {
                while server.engine.requests().is_empty() {
                    tokio::task::yield_now().await;
                }
            }
            if half_close {
                client.stream.shutdown().await.unwrap();
            } else {
                client.stream.set_zero_linger().unwrap();
                drop(client);
            }
            assert_eq!(soon(server.engine.abort()).await, 0, "{name}, half-close {half_close}");
        }
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_is_given_up() {
    let options = ServerOptions { write_timeout: Duration::from_millis(200), ..ServerOptions::default() };
    let server = Server::with(Scripted::new(vec![Act::Forever(LONG)]), options).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    stream.write_all(chat(true).as_bytes()).await.unwrap();
    soon(server.engine.abort()).await;
    assert_eq!(server.exchange(request("GET", "/health", "", "")).await.status, 200);
}

#[tokio::test]
async fn a_quiet_stream_shows_signs_of_life() {
    let options = ServerOptions { keep_alive: Duration::from_millis(20), ..ServerOptions::default() };
    let server = Server::with(Scripted::new(vec![Act::Say("a<¦tool_calls>"), Act::Hold]), options).await;
    let mut client = server.connect().await;
    client.send(chat(true)).await;
    soon(client.until(": keep-alive\n\n")).await;
    soon(client.until(": keep-alive\n\n")).await;
}

#[tokio::test]
async fn refusals_of_the_engine() {
    let full = EngineError::QueueFull { queued: 8, limit: 8 };
    for (error, status, header) in [
        (full, 429, "retry-after: 1"),
        (EngineError::Draining, 503, "retry-after: "),
        (EngineError::Dead("a fault".into()), 503, "retry-after: "),
        (EngineError::OutOfPages { needed: 9, total: 8 }, 400, "content-type"),
        (EngineError::Invalid { field: "top_k", message: "too large".into() }, 400, "content-type"),
        (EngineError::Internal("a fault".into()), 500, "content-type"),
    ] {
        let server = Server::start(Scripted::refusing(error.clone())).await;
        for stream in [false, true] {
            let reply = server.exchange(chat(stream)).await;
            assert_eq!(reply.status, status, "{error}");
            assert!(reply.head.contains(header), "{error}: {}", reply.head);
            reply.error();
        }
    }
}

#[tokio::test]
async fn more_sequences_than_may_wait_are_not_told_to_come_back() {
    let full = EngineError::QueueFull { queued: 0, limit: 3 };
    let server = Server::start(Scripted::refusing(full)).await;
    for (n, status) in [(3, 429), (4, 400)] {
        let body =
            format!(r#"{{"model": "tiny", "n": {n}, "messages": [{{"role": "user", "content": "hi"}}]}}"#);
        let reply = server.chat(body).await;
        assert_eq!(reply.status, status, "n = {n}");
        assert_eq!(reply.error()["param"].as_str(), (status == 400).then_some("n"));
    }
}

#[tokio::test]
async fn a_failure_without_stream_has_a_status() {
    let server = Server::start(Scripted::new(vec![Act::Fail(EngineError::NonFinite { position: 3 })])).await;
    let reply = server.exchange(chat(false)).await;
    assert_eq!((reply.status, reply.error()["code"].as_str()), (500, Some("non_finite_logits")));
    assert!(reply.head.contains("x-should-retry: false"), "the same request would fail again");
}

#[tokio::test]
async fn a_dead_engine_is_unhealthy() {
    let server = Server::start(Scripted::saying("ok¶")).await;
    server.engine.die("the device is lost");
    for request in [request("GET", "/health", "", ""), chat(false)] {
        let reply = server.exchange(request).await;
        assert_eq!(reply.status, 503);
        assert!(reply.error()["message"].as_str().unwrap().contains("the device is lost"));
    }
}

#[tokio::test]
async fn draining_lets_running_streams_end_and_refuses_new_ones() {
    let gate = Arc::new(Semaphore::new(0));
    let script = vec![Act::Say("one "), Act::Gate(gate.clone()), Act::Say("two¶")];
    let mut server = Server::start(Scripted::new(script)).await;
    let mut streaming = server.connect().await;
    streaming.send(chat(true)).await;
    streaming.until("\"content\":\"e\"").await;
    let mut kept = server.connect().await;
    kept.send(request("GET", "/health", "", "")).await;
    assert_eq!(kept.reply().await.status, 200);

    server.shut_down();
    while !server.engine.is_draining() {
        tokio::task::yield_now().await;
    }
    for request in [request("GET", "/health", "", ""), chat(false)] {
        kept.send(&request).await;
        let reply = kept.reply().await;
        assert_eq!(reply.status, 503, "{request}");
        assert!(reply.head.contains("retry-after: "));
        assert_eq!(server.exchange(&request).await.status, 503, "a new connection reads it too");
    }
    gate.add_permits(1);
    let rest = soon(streaming.rest()).await;
    assert!(rest.contains("\"content\":\"t\"") && rest.contains("data: [DONE]"), "{rest}");
    soon(server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn streams_that_outlast_the_drain_end_with_an_error_event() {
    let options = ServerOptions { drain_timeout: Duration::from_millis(50), ..ServerOptions::default() };
    let mut server = Server::with(Scripted::new(vec![Act::Say("one "), Act::Hold]), options).await;
    let mut streaming = server.connect().await;
    streaming.send(chat(true)).await;
    streaming.until("\"content\":\"e\"").await;
    let mut whole = server.connect().await;
    whole.send(chat(false)).await;
    while server.engine.requests().len() < 2 {
        tokio::task::yield_now().await;
    }
    server.shut_down();
    let rest = soon(streaming.rest()).await;
    assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "{rest}");
    assert_eq!(soon(whole.reply()).await.status, 503);
    soon(server.engine.abort()).await;
    soon(server.task).await.unwrap().unwrap();
}
