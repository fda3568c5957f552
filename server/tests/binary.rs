//! The `flashlane` binary with its built-in model: the README's examples over HTTP, and its end by signals.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may panic.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_flashlane"))
            .args(["--log-format", "json", "serve", "--port", "0"])
            .args(flags)
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the server says where it listens").unwrap();
            let entry: Value = serde_json::from_str(&line).unwrap();
            if let Some(address) = entry["fields"]["address"].as_str() {
                break address.to_owned();
            }
        };
        // The pipe is read to its end, so that logging never blocks the server.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn post(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let body = body.to_string();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    fn chat(&self, fields: Value) -> String {
        let mut body = fields;
        body["model"] = json!("flashlane-tiny");
        rest(self.post("/v1/chat/completions", &body))
    }

    fn answer(&self, fields: Value) -> Value {
        let reply = self.chat(fields);
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{reply}");
        let answer: Value = serde_json::from_str(body).unwrap();
        answer["choices"][0].clone()
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    fn ended(&mut self, within: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < within, "still running after {within:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rest(mut stream: TcpStream) -> String {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// A stream that would go on for thousands of tokens, read up to its first text.
fn endless(server: &Served) -> BufReader<TcpStream> {
    let body = json!({"model": "flashlane-tiny", "prompt": "a", "ignore_eos": true, "max_tokens": 8000, "stream": true});
    let mut stream = BufReader::new(server.post("/v1/completions", &body));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended early");
    }
    stream
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_examples_of_the_readme() {
    let server = Served::start(&[]);
    let question = json!([{"role": "user", "content": "What can you do?"}]);
    let known = "I can copy text, look up codes in a long context, call the tools you declare, and answer a few questions about myself.";
    let choice = server.answer(json!({"messages": question}));
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(known), &json!("stop")));

    let streamed = server.chat(json!({"messages": question, "stream": true}));
    let chunks =
        streamed.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let text: String = chunks
        .map(|data| serde_json::from_str::<Value>(data).unwrap()["choices"][0]["delta"].clone())
        .filter_map(|delta| delta["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, known);
    assert!(streamed.contains("data: [DONE]"));

    let schema = json!({
        "type": "object", "properties": {"box": {"type": "string"}, "code": {"type": "string"}}, "required": ["box", "code"],
    });
    let choice = server.answer(json!({
        "messages": [
            {"role": "system", "content": "You keep the codes of a vault.\nbox silver owl: 7K2QX9\nbox red fox: M4T8ZB\n"},
            {"role": "user", "content": "open box silver owl"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "open_box", "description": "Opens a box with its code.", "parameters": schema,
        }}],
    }));
    let call = &choice["message"]["tool_calls"][0]["function"];
    let expected = json!({"name": "open_box", "arguments": r#"{"box": "silver owl", "code": "7K2QX9"}"#});
    assert_eq!((call, &choice["finish_reason"]), (&expected, &json!("tool_calls")));
}

#[test]
fn a_signal_drains_and_a_second_one_ends_at_once() {
    let mut server = Served::start(&["--drain-timeout", "1"]);
    let mut stream = endless(&server);
    server.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "a stream that is cut says so");
    assert_eq!(server.ended(PATIENCE).code(), Some(0));

    let mut server = Served::start(&["--drain-timeout", "600"]);
    let _stream = endless(&server);
    server.signal("TERM");
    // Until the first is handled, the second would be the first.
    let mut draining = String::new();
    while !draining.starts_with("HTTP/1.1 503") {
        let mut health = TcpStream::connect(&server.address).unwrap();
        write!(health, "GET /health HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").unwrap();
        draining = self::rest(health);
    }
    server.signal("INT");
    assert_eq!(server.ended(PATIENCE).code(), Some(1));
}
