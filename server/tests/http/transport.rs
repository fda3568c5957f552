//! Bytes on the wire: broken, slow, oversized, misdirected.

use std::time::Duration;

use flashlane_server::http::ServerOptions;
use serde_json::json;

use crate::support::{Scripted, Server, post, request};

const CHAT: &str = r#"{"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}"#;
const PATH: &str = "/v1/chat/completions";

fn short() -> ServerOptions {
    ServerOptions {
        header_timeout: Duration::from_millis(100),
        body_timeout: Duration::from_millis(100),
        max_body_bytes: 1000,
        ..ServerOptions::default()
    }
}

#[tokio::test]
async fn refusals_are_error_objects() {
    let server = Server::with(Scripted::saying("ok¶"), short()).await;
    let many = "x: y\r\n".repeat(1000);
    let large = format!("x: {}\r\n", "y".repeat(1 << 20));
    let uri = format!("/{}", "a".repeat(64 << 10));
    for (name, bytes, status) in [
        ("TLS on the plain port", "\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n".into(), 400),
        ("no HTTP", "hello\r\n\r\n".into(), 400),
        ("many headers", request("GET", "/health", &many, ""), 431),
        ("large header", request("GET", "/health", &large, ""), 431),
        ("long URI", request("GET", &uri, "", ""), 414),
        (
            "encoded twice",
            request("POST", PATH, "transfer-encoding: gzip, chunked\r\n", "")
                .replace("content-length: 0\r\n", "")
                + "0\r\n\r\n",
            400,
        ),
        ("unknown encoding", request("POST", PATH, "transfer-encoding: x\r\n", CHAT), 400),
        ("negative length", request("POST", PATH, "", "").replace("length: 0", "length: -5"), 400),
        ("folded header", request("GET", "/health", "a: b\r\n c\r\n", ""), 400),
        ("path is no UTF-8", request("GET", "/v1/models/%ff", "", ""), 400),
        ("two lengths", request("POST", PATH, "content-length: 5\r\n", "{}"), 400),
        ("GET on a POST route", request("GET", PATH, "", ""), 405),
        ("PUT", request("PUT", PATH, "", "{}"), 405),
        ("TRACE", request("TRACE", "/v1/models", "", ""), 405),
        ("POST on a GET route", post("/v1/models", "{}"), 405),
        ("preflight", request("OPTIONS", PATH, "", ""), 405),
        ("unknown path", request("GET", "/v2/models", "", ""), 404),
        ("double slashes", request("GET", "//v1//models", "", ""), 404),
        ("dots", request("GET", "/v1/models/../x", "", ""), 404),
        ("unknown model", request("GET", "/v1/models/x", "", ""), 404),
        ("compressed", request("POST", PATH, "content-encoding: gzip\r\n", CHAT), 415),
        ("UTF-16", request("POST", PATH, "content-type: application/json; charset=utf-16\r\n", CHAT), 415),
        ("declared too large", request("POST", PATH, "", &" ".repeat(1001)), 413),
        (
            "too large in chunks",
            request("POST", PATH, "transfer-encoding: chunked\r\n", "").replace("content-length: 0\r\n", "")
                + &format!("{:x}\r\n{}\r\n0\r\n\r\n", 1001, " ".repeat(1001)),
            413,
        ),
    ] {
        let reply = server.exchange(&bytes).await;
        assert_eq!(reply.status, status, "{name}: {reply:?}");
        reply.error();
        if status == 405 {
            assert!(reply.head.contains("allow: "), "{name}: {reply:?}");
        }
        assert!(reply.head.contains("content-type: application/json"), "{name}: {reply:?}");
    }
    assert!(server.engine.requests().is_empty());
    assert_eq!(server.exchange(request("GET", "/health", "", "")).await.status, 200);
}

#[tokio::test]
async fn a_length_beside_chunks_cannot_smuggle_a_request() {
    let server = Server::start(Scripted::saying("ok¶")).await;
    let chunks = format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", CHAT.len());
    for headers in
        ["content-length: 4\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 4"]
    {
        let mut client = server.connect().await;
        let smuggled = request("GET", "/health", "", "");
        client.send(format!("POST {PATH} HTTP/1.1\r\nhost: t\r\n{headers}\r\n\r\n{chunks}{smuggled}")).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 200, "{headers}: the chunks are the body");
        assert!(reply.head.contains("connection: close"), "{headers}: {}", reply.head);
        assert_eq!(client.rest().await, "", "{headers}: nothing behind it is a request");
    }
}

#[tokio::test]
async fn usual_clients_are_served() {
    let server = Server::start(Scripted::saying("ok¶")).await;
    let chunked = format!(
        "POST {PATH} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{CHAT}\r\n0\r\n\r\n",
        CHAT.len()
    );
    for (name, bytes) in [
        ("chunked body", chunked),
        ("no content type", request("POST", PATH, "", CHAT)),
        ("text/plain", request("POST", PATH, "content-type: text/plain\r\n", CHAT)),
        ("utf-8", request("POST", PATH, "content-type: application/json; charset=utf-8\r\n", CHAT)),
        ("continue", request("POST", PATH, "expect: 100-continue\r\n", CHAT)),
        ("models", request("GET", "/v1/models", "", "")),
        ("model", request("GET", "/v1/models/tiny", "", "")),
        ("version", request("GET", "/version", "", "")),
        ("metrics", request("GET", "/metrics", "", "")),
    ] {
        let reply = server.exchange(&bytes).await;
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
    }
    let mut head = server.connect().await;
    head.send(request("HEAD", "/health", "connection: close\r\n", "")).await;
    let reply = head.rest().await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("\r\n\r\n"), "{reply:?}");
}

#[tokio::test]
async fn slow_and_broken_requests_end_without_reaching_the_engine() {
    let server = Server::with(Scripted::saying("ok¶"), short()).await;
    let mut silent = server.connect().await;
    assert_eq!(silent.rest().await, "", "no request, no answer");
    let mut headers = server.connect().await;
    headers.send("GET /health HT").await;
    assert_eq!(headers.rest().await, "", "the header timeout closes");
    let mut body = server.connect().await;
    body.send(format!("POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-length: 500\r\n\r\n{{")).await;
    let reply = body.reply().await;
    assert_eq!(reply.status, 408);
    assert!(reply.head.contains("connection: close"));
    reply.error();
    let mut cut = server.connect().await;
    cut.send(format!("POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-length: 500\r\n\r\n{{}}")).await;
    tokio::io::AsyncWriteExt::shutdown(&mut cut.stream).await.unwrap();
    cut.rest().await;
    assert!(server.engine.requests().is_empty());
    assert_eq!(server.exchange(request("GET", "/health", "", "")).await.status, 200);
}

#[tokio::test]
async fn api_keys() {
    let options = ServerOptions { api_keys: vec!["one".into(), "zwei".into()], ..ServerOptions::default() };
    let server = Server::with(Scripted::saying("ok¶"), options).await;
    for (path, header, status) in [
        ("/v1/models", "authorization: Bearer one\r\n", 200),
        ("/v1/models", "authorization: bearer zwei\r\n", 200),
        ("/v1/models", "", 401),
        ("/v1/models", "authorization: Bearer \r\n", 401),
        ("/v1/models", "authorization: Bearer on\r\n", 401),
        ("/v1/models", "authorization: Basic one\r\n", 401),
        ("/v1/models", "authorization: Bearer öne\r\n", 401),
        ("/v1/models?api_key=one", "", 401),
        ("/v1/nothing", "", 401),
        ("/health", "", 200),
    ] {
        let reply = server.exchange(request("GET", path, header, "")).await;
        assert_eq!(reply.status, status, "{path} {header}");
        if status == 401 {
            reply.error();
            assert!(reply.head.contains("www-authenticate: bearer"));
        }
    }
}

#[tokio::test]
async fn connections_beyond_the_cap_are_refused_and_the_others_served() {
    let options = ServerOptions { max_connections: 2, ..ServerOptions::default() };
    let server = Server::with(Scripted::saying("ok¶"), options).await;
    let mut kept = [server.connect().await, server.connect().await];
    for client in &mut kept {
        client.send(request("GET", "/health", "", "")).await;
        assert_eq!(client.reply().await.status, 200);
    }
    let mut third = server.connect().await;
    let reply = third.reply().await;
    assert_eq!(reply.status, 503);
    reply.error();
    for client in &mut kept {
        client.send(request("GET", "/version", "", "")).await;
        assert_eq!(client.reply().await.json()["name"], json!("flashlane"));
    }
}
