//! Answers of a server over HTTP: streamed chat completions, one connection each.
//!
//! Plain HTTP only: a stress run belongs beside the server. What is not here: TLS, proxies, redirects, HTTP/2.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode, Uri, header};
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::answer::Answer;

/// Connecting to a server that is there takes no longer.
const CONNECT: Duration = Duration::from_secs(10);
/// Of a response that is no stream, this much is read.
const MAX_ERROR_BYTES: usize = 4096;

/// Where the requests go.
#[derive(Clone, Debug)]
pub struct Remote {
    host: String,
    port: u16,
    path: String,
    model: String,
    api_key: Option<String>,
}

/// Why a URL cannot be asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    #[error("{0:?} is not a URL; expected one like http://127.0.0.1:8000")]
    Form(String),
    #[error("{0:?}: only http:// can be asked, found {1:?}; a local proxy can speak TLS")]
    Scheme(String, String),
}

impl Remote {
    /// `url`: the server's root, or its `/v1`.
    ///
    /// # Errors
    /// [`BadUrl`].
    pub fn new(url: &str, model: String, api_key: Option<String>) -> Result<Self, BadUrl> {
        let form = || BadUrl::Form(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| form())?;
        let host = uri.host().ok_or_else(form)?.trim_matches(['[', ']']).to_owned();
        match uri.scheme_str() {
            Some("http") => {}
            other => return Err(BadUrl::Scheme(url.to_owned(), other.unwrap_or_default().to_owned())),
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let path = format!("{base}/v1/chat/completions");
        Ok(Self { host, port: uri.port_u16().unwrap_or(80), path, model, api_key })
    }

    /// # Errors
    /// A sentence: no connection, a refusal, or a stream that breaks off; `answer` has what came before.
    pub(super) async fn ask(&self, mut body: Value, answer: &mut Answer) -> Result<(), String> {
        body["model"] = self.model.as_str().into();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let mut stream = self.send(body.to_string()).await?;
        let mut rest = Vec::new();
        while let Some(bytes) = stream.next().await {
            rest.extend(bytes.map_err(|error| format!("the stream broke off: {error}"))?);
            while let Some(end) = rest.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                match line.strip_prefix("data:").map(str::trim) {
                    None => {}
                    Some("[DONE]") if answer.finish.is_empty() => {
                        return Err("the stream ended without a finish reason".to_owned());
                    }
                    Some("[DONE]") => return Ok(()),
                    Some(data) => event(answer, data)?,
                }
            }
        }
        Err("the stream ended without [DONE]".to_owned())
    }

    async fn send(&self, body: String) -> Result<BodyDataStream, String> {
        let connect = TcpStream::connect((self.host.as_str(), self.port));
        let stream = tokio::time::timeout(CONNECT, connect).await;
        let stream =
            stream.map_err(|_| "connecting takes too long".to_owned())?.map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        // It ends with the exchange, and with the sender.
        tokio::spawn(connection);
        let mut request = Request::post(&self.path)
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Body::from(body)).map_err(|e| e.to_string())?;
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status();
        let mut stream = Body::new(response.into_body()).into_data_stream();
        if status != StatusCode::OK {
            let mut text = Vec::new();
            while let (Some(Ok(bytes)), true) = (stream.next().await, text.len() < MAX_ERROR_BYTES) {
                text.extend(bytes);
            }
            return Err(format!("{status}: {}", String::from_utf8_lossy(&text).trim()));
        }
        Ok(stream)
    }
}

/// One chunk of the stream.
fn event(answer: &mut Answer, data: &str) -> Result<(), String> {
    let chunk: Value =
        serde_json::from_str(data).map_err(|e| format!("a chunk is not JSON ({e}): {data}"))?;
    if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
        return Err(format!("the server failed: {error}"));
    }
    if let Some(prompt) = chunk["usage"]["prompt_tokens"].as_u64() {
        answer.prompt = usize::try_from(prompt).unwrap_or(0);
    }
    let choice = &chunk["choices"][0];
    let delta = &choice["delta"];
    for field in ["reasoning_content", "reasoning"] {
        answer.reasoning += delta[field].as_str().unwrap_or_default();
    }
    if let Some(text) = delta["content"].as_str() {
        answer.text(text);
    }
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        let index = call["index"].as_u64().and_then(|i| usize::try_from(i).ok()).unwrap_or(0);
        let called = answer.call(index);
        called.name += call["function"]["name"].as_str().unwrap_or_default();
        called.arguments += call["function"]["arguments"].as_str().unwrap_or_default();
    }
    if let Some(finish) = choice["finish_reason"].as_str() {
        finish.clone_into(&mut answer.finish);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{BadUrl, Remote, event};
    use crate::sessions::{Answer, Called};

    #[test]
    fn urls() {
        let path = |url| Remote::new(url, "m".into(), None).map(|r| (r.host, r.port, r.path));
        let v1 = "/v1/chat/completions";
        assert_eq!(path("http://a:8000"), Ok(("a".into(), 8000, v1.into())));
        assert_eq!(path("http://a/v1/"), Ok(("a".into(), 80, v1.into())));
        assert_eq!(path("http://[::1]:1/x/v1"), Ok(("::1".into(), 1, format!("/x{v1}"))));
        assert!(matches!(path("https://a"), Err(BadUrl::Scheme(..))));
        assert!(matches!(path("no url"), Err(BadUrl::Form(_))));
    }

    #[test]
    fn chunks_become_an_answer() {
        let mut answer = Answer::default();
        let chunks = [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"open","arguments":""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}]}"#,
            r#"{"choices":[{"delta":{"content":" \n"}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":7}}"#,
        ];
        chunks.iter().for_each(|chunk| event(&mut answer, chunk).unwrap());
        let called = Called { name: "open".into(), arguments: r#"{"a":1}"#.into() };
        assert_eq!((answer.calls, answer.stray, answer.prompt), (vec![called], false, 7));
        assert_eq!(answer.finish, "tool_calls");
        let mut answer = Answer::default();
        assert!(event(&mut answer, r#"{"error":{"message":"no"}}"#).unwrap_err().contains("no"));
        assert!(event(&mut answer, "{").unwrap_err().contains("not JSON"));
    }
}
