//! A raw HTTP client: what goes over the wire is what the test says.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response, its body without chunk frames.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Status line and headers, lower case.
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The `error` object, which must be complete.
    pub fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{self:?}");
        assert!(
            error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(),
            "{self:?}"
        );
        error
    }

    /// The data of each event of a stream.
    pub fn events(&self) -> Vec<String> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// The JSON events of a stream.
    pub fn chunks(&self) -> Vec<Value> {
        let events = self.events();
        events.iter().filter(|e| *e != "[DONE]").map(|e| serde_json::from_str(e).unwrap()).collect()
    }
}

#[derive(Debug)]
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The server may refuse and close before it has read everything.
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Reads until the connection ends, or is reset.
    pub async fn rest(&mut self) -> String {
        while self.fill().await {}
        String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()
    }

    /// Reads until `text` has come, and returns everything up to it.
    pub async fn until(&mut self, text: &str) -> String {
        loop {
            let at = self.buffer.windows(text.len()).position(|window| window == text.as_bytes());
            if let Some(at) = at {
                let rest = self.buffer.split_off(at + text.len());
                return String::from_utf8_lossy(&std::mem::replace(&mut self.buffer, rest)).into_owned();
            }
            assert!(self.fill().await, "the connection ended before {text:?}: {:?}", self.buffer);
        }
    }

    /// One response, leaving the connection usable.
    pub async fn reply(&mut self) -> Reply {
        let head = self.until("\r\n\r\n").await.to_ascii_lowercase();
        let status = head.get(9..12).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{head:?}"));
        if status == 100 {
            return Box::pin(self.reply()).await;
        }
        let body = if head.contains("transfer-encoding: chunked") {
            self.chunked().await
        } else {
            let length = head.split("content-length: ").nth(1).and_then(|s| s.lines().next());
            self.exactly(length.map_or(0, |length| length.parse().unwrap())).await
        };
        Reply { status, head, body: String::from_utf8(body).unwrap() }
    }

    async fn chunked(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let size = self.until("\r\n").await;
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            body.extend(self.exactly(size).await);
            self.exactly(2).await;
            if size == 0 {
                return body;
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert!(self.fill().await, "the connection ended in a body: {:?}", self.buffer);
        }
        let rest = self.buffer.split_off(length);
        std::mem::replace(&mut self.buffer, rest)
    }

    async fn fill(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(n) if n > 0)
    }
}

/// A POST with a JSON body.
pub fn post(path: &str, body: impl AsRef<str>) -> String {
    request("POST", path, "content-type: application/json\r\n", body.as_ref())
}

pub fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = if body.is_empty() && method != "POST" {
        String::new()
    } else {
        format!("content-length: {}\r\n", body.len())
    };
    format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}{length}\r\n{body}")
}
