//! The rules of a stream that client libraries depend on, on the bytes of the stream.

use flashlane::engine::EngineError;
use serde_json::{Value, json};

use crate::support::{Act, Reply, Scripted, Server, post};

const CALL: &str = "§hm\n\n<¦tool_calls>\n<¦invoke name=\"f\">\n<¦parameter name=\"a\" string=\"true\">x\"y</¦parameter>\n\
                    </¦invoke>\n<¦invoke name=\"g\"></¦invoke>\n</¦tool_calls>¶";

fn body(extra: Value) -> String {
    let mut body = json!({
        "model": "tiny", "stream": true, "thinking": {"type": "enabled"},
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}],
    });
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string()
}

async fn stream(script: &'static str, extra: Value) -> Reply {
    let server = Server::start(Scripted::saying(script)).await;
    let reply = server.chat(body(extra)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.head.contains("content-type: text/event-stream") && reply.head.contains("chunked"));
    reply
}

/// Puts the text deltas of a field together.
fn joined(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
}

#[tokio::test]
async fn chunks_keep_the_rules() {
    let reply = stream("why é🦀§yes¶", json!({})).await;
    assert_eq!(reply.events().last().unwrap(), "[DONE]");
    let chunks = reply.chunks();
    let head = |chunk: &Value| (chunk["id"].clone(), chunk["created"].clone(), chunk["model"].clone());
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(head(chunk), head(&chunks[0]));
        assert!(chunk.get("usage").is_none(), "no usage unasked");
        let choices = chunk["choices"].as_array().unwrap();
        assert!(choices.len() == 1 && choices[0]["delta"].is_object() && choices[0]["index"] == 0);
    }
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(chunks[1..].iter().all(|chunk| chunk["choices"][0]["delta"].get("role").is_none()));
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));
    assert_eq!(chunks.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null()).count(), 1);
    assert_eq!(joined(&chunks, "reasoning_content"), "why é🦀");
    assert_eq!(joined(&chunks, "content"), "yes");
}

#[tokio::test]
async fn tool_deltas_name_a_call_once() {
    let chunks = stream(CALL, json!({})).await.chunks();
    assert_eq!(joined(&chunks, "content"), "hm");
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for delta in chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()) {
        let call = &delta[0];
        let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
        let arguments = call["function"]["arguments"].as_str().unwrap();
        if index == calls.len() {
            assert_eq!((call["type"].as_str(), arguments), (Some("function"), ""));
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            calls.push((text(&call["id"]), text(&call["function"]["name"]), String::new()));
        } else {
            let keys: Vec<&String> = call.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["index", "function"], "later pieces carry arguments only");
            assert_eq!(call["function"].as_object().unwrap().len(), 1);
            calls[index].2 += arguments;
        }
    }
    assert_ne!(calls[0].0, calls[1].0);
    assert_eq!((calls[0].1.as_str(), calls[0].2.as_str()), ("f", r#"{"a": "x\"y"}"#));
    assert_eq!((calls[1].1.as_str(), calls[1].2.as_str()), ("g", "{}"));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn streamed_and_whole_answers_agree() {
    for script in [CALL, "why§yes¶", "all reasoning¶", "§a <¶"] {
        let chunks = stream(script, json!({})).await.chunks();
        let server = Server::start(Scripted::saying(script)).await;
        let whole = server.chat(body(json!({"stream": false}))).await.json();
        let message = &whole["choices"][0]["message"];
        assert_eq!(joined(&chunks, "content"), message["content"].as_str().unwrap_or_default());
        assert_eq!(
            joined(&chunks, "reasoning_content"),
            message["reasoning_content"].as_str().unwrap_or_default()
        );
        assert_eq!(
            chunks.last().unwrap()["choices"][0]["finish_reason"],
            whole["choices"][0]["finish_reason"]
        );
    }
}

#[tokio::test]
async fn usage_comes_only_when_asked() {
    let reply = stream("§ab¶", json!({"stream_options": {"include_usage": true}})).await;
    let chunks = reply.chunks();
    let (last, before) = chunks.split_last().unwrap();
    assert!(before.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        (&last["usage"]["completion_tokens"], &last["usage"]["prompt_tokens"]),
        (&json!(4), &{
            let prompt = last["usage"]["total_tokens"].as_u64().unwrap() - 4;
            json!(prompt)
        })
    );
    assert_eq!(last["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
    let options = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let chunks = stream("§ab¶", options).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk["usage"]["prompt_tokens"].is_u64()));
}

#[tokio::test]
async fn a_failure_is_one_error_event_without_done() {
    for (act, message) in [
        (Act::Fail(EngineError::NonFinite { position: 7 }), "not finite at position 7"),
        (Act::Vanish, "stopped"),
    ] {
        let server = Server::start(Scripted::new(vec![Act::Say("§ab"), act])).await;
        let reply = server.chat(body(json!({}))).await;
        let events = reply.events();
        let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(message), "{error}");
        assert!(!events.iter().any(|event| event == "[DONE]"));
        assert_eq!(joined(&reply.chunks(), "content"), "ab", "what came before stays");
    }
}

#[tokio::test]
async fn choices_are_interleaved_and_complete() {
    let chunks = stream("§ab¶", json!({"n": 3, "seed": 5})).await.chunks();
    for index in 0..3 {
        let own = |chunk: &&Value| chunk["choices"][0]["index"] == index;
        let own: Vec<Value> = chunks.iter().filter(own).cloned().collect();
        assert_eq!(joined(&own, "content"), "ab");
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(own.last().unwrap()["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn completions_stream_text() {
    let server = Server::start(Scripted::saying("a§b¶")).await;
    let body = json!({"model": "tiny", "prompt": "p", "stream": true});
    let reply = server.exchange(post("/v1/completions", body.to_string())).await;
    let chunks = reply.chunks();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "a</think>b", "raw text keeps what the model spells");
    assert!(chunks.iter().all(|chunk| chunk["object"] == "text_completion"));
    assert_eq!(reply.events().last().unwrap(), "[DONE]");
}
