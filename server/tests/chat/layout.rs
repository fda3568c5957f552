//! Prompts piece by piece. `vectors/encode.json` was written by the reference encoder at effort "low", which adds no text.

use flashlane_server::chat::{Conversation, Effort, Message, Opening, Piece, ToolChoice, render};
use flashlane_server::openai::ChatRequest;
use serde_json::{Value, json};

fn pieces(conversation: &Conversation) -> Value {
    let pieces = render(conversation).pieces;
    let shown = pieces.as_slice().iter().map(|piece| match piece {
        Piece::Text(text) => json!(text),
        Piece::Control(control) => json!({"control": control.spelling()}),
    });
    shown.collect()
}

fn conversation(request: &Value) -> Conversation {
    let mut body = request.clone();
    body["model"] = json!("m");
    ChatRequest::read(&body, true).unwrap().conversation
}

/// The reference leaves nothing between the tags of a call without arguments; V4-Flash was trained on a blank line.
fn blank_line_in_empty_calls(piece: &mut Value) {
    if let Some(text) =
        piece.as_str().filter(|text| text.starts_with("invoke name=\"") && text.ends_with(">\n</"))
    {
        *piece = json!(text.replace(">\n</", ">\n\n</"));
    }
}

#[test]
fn prompts_are_those_of_the_reference_encoder() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../vectors/encode.json")).unwrap();
    assert!(vectors.len() > 20);
    for vector in vectors {
        let mut expected = vector["pieces"].clone();
        expected.as_array_mut().unwrap().iter_mut().for_each(blank_line_in_empty_calls);
        if vector["name"] == "named" {
            // The reference opens the block; here the name is forced as well.
            expected.as_array_mut().unwrap().pop();
            let opener = [
                json!("tool_calls>\n<"),
                json!({"control": "｜DSML｜"}),
                json!("invoke name=\"get_weather\">\n"),
            ];
            expected.as_array_mut().unwrap().extend(opener);
        }
        assert_eq!(pieces(&conversation(&vector["request"])), expected, "{}", vector["name"]);
    }
}

#[test]
fn the_opening_says_where_the_answer_begins() {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let user = json!({"role": "user", "content": "a"});
    for (fields, opening) in [
        (json!({}), Opening::Reasoning),
        (json!({"thinking": {"type": "disabled"}}), Opening::Content),
        (json!({"tools": tools, "tool_choice": "required"}), Opening::Block),
        (
            json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
            Opening::Call("f".into()),
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": "b", "prefix": true}]}),
            Opening::Continuation,
        ),
    ] {
        let mut request = json!({"messages": [user]});
        for (name, value) in fields.as_object().unwrap() {
            request[name] = value.clone();
        }
        assert_eq!(render(&conversation(&request)).opening, opening, "{fields}");
    }
}

#[test]
fn the_largest_effort_precedes_the_system_text_when_thinking() {
    let mut conversation = Conversation {
        messages: vec![Message::System("S".into()), Message::User("a".into())],
        thinking: true,
        effort: Effort::Max,
        tool_choice: ToolChoice::Auto,
        ..Conversation::default()
    };
    let text = |c: &Conversation| pieces(c)[1].as_str().unwrap().to_owned();
    assert!(
        text(&conversation)
            .starts_with("Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST")
    );
    assert!(text(&conversation).ends_with("left unchecked.\n\nS"));
    conversation.thinking = false;
    assert_eq!(text(&conversation), "S");
}
