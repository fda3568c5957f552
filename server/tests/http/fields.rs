//! Request bodies: each wrong one is refused with the field's name, and the server goes on.

use serde_json::{Value, json};

use crate::support::{Scripted, Server, post, request};

/// A valid chat request with some fields replaced.
fn chat(fields: Value) -> String {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string()
}

fn messages(messages: Value) -> String {
    chat(json!({"messages": messages}))
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {}}})
}

fn call(id: &str) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "r"})
}

/// Sends every body on one connection, which must survive them all.
async fn refuse(path: &str, rows: Vec<(String, u16, Option<&str>)>) {
    let server = Server::start(Scripted::saying("ok¶")).await;
    let mut client = server.connect().await;
    for (body, status, param) in rows {
        let shown: String = body.chars().take(200).collect();
        client.send(post(path, &body)).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, status, "{shown}: {}", reply.body);
        if status != 200 {
            assert_eq!(reply.error()["param"].as_str(), param, "{shown}: {}", reply.body);
            let message = reply.error()["message"].to_string();
            let expects = param.is_some() && message.contains("expected ");
            assert!(!expects || message.contains(", found "), "{shown}: {message}");
        }
    }
    client.send(post(path, chat(json!({"prompt": "hi"})))).await;
    assert_eq!(client.reply().await.status, 200, "the server goes on");
}

#[tokio::test]
async fn syntax() {
    let bad = |body: &str| (body.to_owned(), 400, None);
    refuse(
        "/v1/chat/completions",
        vec![
            bad(""),
            bad("  \n"),
            bad("{\"model\": \"tiny\""),
            bad("{} {}"),
            bad("{\"temperature\": NaN}"),
            bad("{\"temperature\": 1e999}"),
            bad("{\"a\": \"\\ud83d\"}"),
            bad("[]"),
            bad("\"x\""),
            bad("null"),
            bad(&("[".repeat(129) + &"]".repeat(129))),
            bad(&"{\"a\":".repeat(100_000)),
        ],
    )
    .await;
}

#[tokio::test]
async fn invalid_utf8_is_refused_with_its_offset() {
    let server = Server::start(Scripted::saying("ok¶")).await;
    let mut bytes = request("POST", "/v1/chat/completions", "content-length: 9\r\n", "").into_bytes();
    let head = String::from_utf8(std::mem::take(&mut bytes)).unwrap().replace("content-length: 0\r\n", "");
    let reply = server.exchange([head.as_bytes(), b"{\"a\":\"\xff\"}"].concat()).await;
    assert_eq!(reply.status, 400);
    assert!(reply.error()["message"].as_str().unwrap().contains("offset 6"), "{reply:?}");
}

#[tokio::test]
async fn scalar_fields() {
    let mut rows = vec![
        (json!({"messages": []}).to_string(), 400, Some("model")),
        (chat(json!({"model": 5})), 400, Some("model")),
        (chat(json!({"model": "other"})), 404, Some("model")),
        (chat(json!({"max_tokens": 3, "max_completion_tokens": 4})), 400, Some("max_completion_tokens")),
        (chat(json!({"max_tokens": 3, "max_completion_tokens": 3})), 200, None),
        (chat(json!({"stream_options": {"include_usage": true}})), 400, Some("stream_options")),
        (chat(json!({"top_logprobs": 2})), 400, Some("top_logprobs")),
        (chat(json!({"max_tokens": 1_000_000_000})), 400, Some("messages")),
        (chat(json!({"thinking": {"type": "maybe"}})), 400, Some("thinking.type")),
        (chat(json!({"chat_template_kwargs": {"foo": 1}})), 400, Some("chat_template_kwargs.foo")),
        (chat(json!({"response_format": {"type": "xml"}})), 400, Some("response_format.type")),
        (chat(json!({"unknown_field": 1, "user": "u", "store": false, "metadata": {}})), 200, None),
    ];
    for (field, bad, good) in [
        (
            "max_tokens",
            vec![json!(0), json!(-1), json!(1.5), json!("16"), json!(1e30)],
            vec![json!(16.0), json!(null)],
        ),
        (
            "temperature",
            vec![json!(-0.1), json!(2.1), json!("0.5")],
            vec![json!(null), json!(-0.0), json!(1e-9)],
        ),
        ("top_p", vec![json!(0), json!(1.1), json!("x")], vec![json!(1), json!(0.1)]),
        ("top_k", vec![json!(-2), json!(1.5)], vec![json!(-1), json!(0), json!(40)]),
        ("min_p", vec![json!(2), json!(-1)], vec![json!(0.5)]),
        ("n", vec![json!(0), json!(17), json!("2")], vec![json!(2)]),
        (
            "seed",
            vec![json!(-9.3e18), json!(18_446_744_073_709_551_616_f64), json!("1"), json!(1.5)],
            vec![json!(-5)],
        ),
        (
            "stop",
            vec![json!(""), json!(["a", ""]), json!(vec!["a"; 17]), json!(5), json!("x".repeat(1 << 20))],
            vec![json!([]), json!(vec!["a"; 16])],
        ),
        ("stop_token_ids", vec![json!([-1]), json!(["a"]), json!(5)], vec![json!([1])]),
        ("stream", vec![json!("true"), json!(1)], vec![json!(false)]),
        ("logprobs", vec![json!(5)], vec![json!(true)]),
        ("reasoning_effort", vec![json!("huge"), json!(3)], vec![json!("none"), json!("max")]),
        (
            "response_format",
            vec![json!({"type": "json_object"}), json!({"type": "json_schema"}), json!("text")],
            vec![json!({"type": "text"})],
        ),
        ("frequency_penalty", vec![json!(0.5)], vec![json!(0), json!(null)]),
        ("presence_penalty", vec![json!(-1)], vec![json!(0.0)]),
        ("logit_bias", vec![json!({"999999999": 5})], vec![json!({})]),
        ("functions", vec![json!([])], vec![]),
        ("modalities", vec![json!(["text", "audio"])], vec![json!(["text"])]),
        ("guided_json", vec![json!({})], vec![]),
        ("min_tokens", vec![json!(3)], vec![json!(0)]),
    ] {
        rows.extend(bad.into_iter().map(|value| (chat(json!({field: value})), 400, Some(field))));
        rows.extend(good.into_iter().map(|value| (chat(json!({field: value})), 200, None)));
    }
    refuse("/v1/chat/completions", rows).await;
}

#[tokio::test]
async fn message_lists() {
    let user = json!({"role": "user", "content": "a"});
    refuse(
        "/v1/chat/completions",
        vec![
            (json!({"model": "tiny"}).to_string(), 400, Some("messages")),
            (messages(json!(null)), 400, Some("messages")),
            (messages(json!("hi")), 400, Some("messages")),
            (messages(json!([])), 400, Some("messages")),
            (messages(json!(["hi"])), 400, Some("messages[0]")),
            (messages(json!([{"content": "a"}])), 400, Some("messages[0].role")),
            (messages(json!([{"role": "robot", "content": "a"}])), 400, Some("messages[0].role")),
            (messages(json!([{"role": "user"}])), 400, Some("messages[0].content")),
            (messages(json!([{"role": "user", "content": 5}])), 400, Some("messages[0].content")),
            (messages(json!([{"role": "user", "content": {"a": 1}}])), 400, Some("messages[0].content")),
            (messages(json!([{"role": "user", "content": ""}])), 200, None),
            (messages(json!([{"role": "developer", "content": "d"}, user])), 200, None),
            (messages(json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}])), 200, None),
            (
                messages(json!([{"role": "user", "content": [{"type": "image_url"}]}])),
                400,
                Some("messages[0].content[0].type"),
            ),
            (messages(json!([{"role": "assistant"}])), 400, Some("messages[0].content")),
            (messages(json!([user, call("1"), result("1")])), 200, None),
            (messages(json!([user, result("1")])), 400, Some("messages[1].tool_call_id")),
            (messages(json!([user, call("1"), result("2")])), 400, Some("messages[2].tool_call_id")),
            (
                messages(json!([user, call("1"), result("1"), result("1")])),
                400,
                Some("messages[3].tool_call_id"),
            ),
            (messages(json!([user, call("1"), user])), 400, Some("messages[2]")),
            (messages(json!([user, call("1")])), 400, Some("messages[1]")),
            (messages(json!([user, {"role": "assistant", "content": "b", "prefix": true}])), 200, None),
            (
                messages(json!([{"role": "assistant", "content": "b", "prefix": true}, user])),
                400,
                Some("messages[0].prefix"),
            ),
            (messages(Value::Array(vec![user.clone(); 100_000])), 400, Some("messages")),
        ],
    )
    .await;
}

#[tokio::test]
async fn tools() {
    let with = |tools: Value| chat(json!({"tools": tools}));
    let choose = |choice: Value| chat(json!({"tools": [tool("f")], "tool_choice": choice}));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let nulls = json!([{"type": "function", "function": {
        "name": "f", "description": null, "parameters": {"type": "object", "properties": {}, "required": null},
    }}]);
    refuse(
        "/v1/chat/completions",
        vec![
            (with(json!({})), 400, Some("tools")),
            (with(json!([{"type": "web_search"}])), 400, Some("tools[0].type")),
            (with(json!([{"type": "function"}])), 400, Some("tools[0].function")),
            (with(json!([tool("")])), 400, Some("tools[0].function.name")),
            (with(json!([tool("a b")])), 400, Some("tools[0].function.name")),
            (with(json!([tool("a\">")])), 400, Some("tools[0].function.name")),
            (with(json!([tool(&"a".repeat(129))])), 400, Some("tools[0].function.name")),
            (with(json!([tool(&"a".repeat(128))])), 200, None),
            (with(json!([tool("f"), tool("f")])), 400, Some("tools[1].function.name")),
            (
                with(json!([{"type": "function", "function": {"name": "f", "parameters": []}}])),
                400,
                Some("tools[0].function.parameters"),
            ),
            (with(nulls), 200, None),
            (choose(json!("maybe")), 400, Some("tool_choice")),
            (choose(json!(5)), 400, Some("tool_choice")),
            (choose(named("g")), 400, Some("tool_choice")),
            (choose(named("f")), 200, None),
            (choose(json!("none")), 200, None),
            (chat(json!({"tool_choice": "required"})), 400, Some("tool_choice")),
        ],
    )
    .await;
}

#[tokio::test]
async fn completions() {
    let with = |name: &str, value: Value| {
        let mut body = json!({"model": "tiny", "prompt": "hi"});
        body[name] = value;
        body.to_string()
    };
    refuse(
        "/v1/completions",
        vec![
            (json!({"model": "tiny"}).to_string(), 400, Some("prompt")),
            (with("prompt", json!("")), 200, None),
            (with("prompt", json!(["a", "b"])), 200, None),
            (with("prompt", json!([16, 17])), 200, None),
            (with("prompt", json!([[16], [17]])), 200, None),
            (with("prompt", json!([])), 400, Some("prompt")),
            (with("prompt", json!([[]])), 400, Some("prompt")),
            (with("prompt", json!([-1])), 400, Some("prompt")),
            (with("prompt", json!([100_000])), 400, Some("prompt")),
            (with("prompt", json!([1, "a"])), 400, Some("prompt")),
            (with("echo", json!(true)), 400, Some("echo")),
            (with("suffix", json!("s")), 400, Some("suffix")),
            (with("response_format", json!({"type": "text"})), 200, None),
            (with("response_format", json!({"type": "json_object"})), 400, Some("response_format")),
            (with("include_stop_str_in_output", json!(true)), 400, Some("include_stop_str_in_output")),
            (with("best_of", json!(2)), 400, Some("best_of")),
            (with("logprobs", json!(21)), 400, Some("logprobs")),
            (with("max_tokens", json!(0)), 400, Some("max_tokens")),
            (with("max_tokens", json!(100_000)), 400, Some("prompt")),
        ],
    )
    .await;
}

#[tokio::test]
async fn context_length() {
    // "hi" is encoded as BOS, User, h, i, Assistant, </think>.
    for (limit, max_tokens, status) in
        [(7, None, 200), (6, None, 400), (5, None, 400), (8, Some(2), 200), (8, Some(3), 400)]
    {
        let server = Server::start(Scripted::saying("ok¶").with_max_model_len(limit)).await;
        let reply = server.chat(chat(json!({"max_tokens": max_tokens}))).await;
        assert_eq!(reply.status, status, "limit {limit}, {max_tokens:?}: {}", reply.body);
        if status == 400 {
            assert_eq!(reply.error()["code"], "context_length_exceeded");
            assert!(reply.body.contains("maximum context length is"), "litellm looks for these words");
        } else {
            assert_eq!(server.engine.requests()[0].max_tokens, limit - 6);
        }
    }
}

#[tokio::test]
async fn a_huge_prompt_on_a_small_server_is_refused_fast() {
    let server = Server::start(Scripted::saying("ok¶").with_max_model_len(64)).await;
    let start = std::time::Instant::now();
    let reply = server.chat(messages(json!([{"role": "user", "content": "word ".repeat(1_000_000)}]))).await;
    assert_eq!((reply.status, reply.error()["code"].as_str()), (400, Some("context_length_exceeded")));
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}
