//! Prompts and parse results of DeepSeek's own `deepseek-recipe` (`tests/golden`, written by `tools/golden/recipe.py`), and
//! the places where flashlane answers differently on purpose.

use std::ops::Range;
use std::sync::Arc;

use flashlane::engine::{FinishReason, Token};
use flashlane_server::chat::{ChatTokenizer, Control, Opening, Piece, Pieces, render};
use flashlane_server::dsml::{Config, ToolSchemas};
use flashlane_server::generation::{ChatDecoder, Decoder, Delta, Finish, Step};
use flashlane_server::openai::ChatRequest;
use serde_json::{Value, json};

use crate::support::tokenizer;

fn prompts() -> Vec<Value> {
    let file: Value = serde_json::from_str(include_str!("../golden/prompts.json")).unwrap();
    file["cases"].as_array().unwrap().clone()
}

/// The prompt as text, with the byte ranges that are control tokens; or the refused field.
fn prompt(request: &Value) -> Result<(String, Vec<Range<usize>>), String> {
    let mut body = request.clone();
    body["model"] = json!("m");
    let request = ChatRequest::read(&body, true).map_err(|error| error.to_json().to_string())?;
    let (mut text, mut control) = (String::new(), Vec::new());
    for piece in render(&request.conversation).pieces.as_slice() {
        let start = text.len();
        match piece {
            Piece::Text(piece) => text += piece,
            Piece::Control(token) => {
                text += token.spelling();
                control.push(start..text.len());
            }
        }
    }
    Ok((text, control))
}

/// Official refusals, and one answer whose prompt depends on the choice of another case, that flashlane renders.
fn by_hand(name: &str, cases: &[Value]) -> Option<String> {
    let of = |name: &str| {
        let case = cases.iter().find(|case| case["name"] == name).unwrap();
        case["prompt"].as_str().unwrap().to_owned()
    };
    Some(match name {
        "developer role" => of("system and user"),
        "tool_choice required, thinking" => {
            of("tool_choice required").replace("<｜Assistant｜>", "<｜Assistant｜><think>")
        }
        "tool_choice named" => of("tool_choice required") + "<｜DSML｜invoke name=\"ping\">\n",
        _ => return None,
    })
}

#[test]
fn prompts_are_the_official_ones() {
    let cases = prompts();
    assert_eq!(cases.len(), 34);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let ours = prompt(&case["request"]);
        if name == "response_format json_object"
            || (case.get("error").is_some() && case.get("note").is_none())
        {
            assert!(ours.is_err(), "{name}: refused");
            continue;
        }
        let (text, control) = ours.unwrap_or_else(|error| panic!("{name}: {error}"));
        let deviation = case["ours"].as_str().map(str::to_owned).or_else(|| by_hand(name, &cases));
        if let Some(expected) = deviation {
            assert_eq!(text, expected, "{name}");
            continue;
        }
        assert_eq!(text, case["prompt"].as_str().unwrap(), "{name}");
        let ranges: Vec<Value> = control.iter().map(|range| json!([range.start, range.end])).collect();
        assert_eq!(json!(ranges), case["control"], "{name}: control tokens");
    }
}

/// The output as tokens: markup spelled in it is control tokens, unless the case says that it is only spelled.
fn tokens(tokenizer: &ChatTokenizer, output: &str, spelled: bool) -> Vec<u32> {
    let mut pieces = Pieces::default();
    let mut rest = output;
    while !rest.is_empty() {
        let next = Control::ALL
            .into_iter()
            .filter_map(|control| Some((rest.find(control.spelling())?, control)))
            .min_by_key(|(at, _)| *at)
            .filter(|_| !spelled);
        let Some((at, control)) = next else {
            pieces.text(rest);
            break;
        };
        pieces.text(&rest[..at]).control(control);
        rest = &rest[at + control.spelling().len()..];
    }
    tokenizer.encode(pieces.as_slice(), 1 << 16).unwrap()
}

/// What a client puts together.
#[derive(Default)]
struct Answer {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    finish: Option<Finish>,
}

impl Answer {
    fn take(&mut self, step: Step) {
        for delta in step.deltas {
            match delta {
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::Text { text, .. } => self.content += &text,
                Delta::CallStart { name, .. } => self.calls.push((name, String::new())),
                Delta::Arguments { index, fragment } => self.calls[index].1 += &fragment,
                Delta::CallEnd { .. } => {}
            }
        }
        self.finish = self.finish.or(step.finish);
    }

    fn json(&self) -> Value {
        let calls: Vec<Value> = self.calls.iter().map(|(name, text)| call(name, text)).collect();
        let finish = self.finish.map(Finish::as_str);
        json!({"reasoning": self.reasoning, "content": self.content, "calls": calls, "finish": finish})
    }
}

/// Arguments as a reader of JSON sees them: of a repeated key, the last one.
fn call(name: &str, arguments: &str) -> Value {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{arguments}: {e}"));
    json!({"name": name, "arguments": arguments})
}

fn parse(tokenizer: &Arc<ChatTokenizer>, case: &Value, tools: &Value) -> Value {
    let functions: Vec<&Value> = tools.as_array().unwrap().iter().map(|tool| &tool["function"]).collect();
    let schemas = functions
        .iter()
        .map(|function| (function["name"].as_str().unwrap(), function["parameters"].as_object().unwrap()));
    let start = if case["thinking"] == true { Opening::Reasoning } else { Opening::Content };
    let config = Config { start, tools: ToolSchemas::new(schemas) };
    let mut decoder = ChatDecoder::new(Arc::clone(tokenizer), config, Vec::new());
    let mut answer = Answer::default();
    for id in tokens(tokenizer, case["output"].as_str().unwrap(), case["spelled"] == true) {
        answer.take(decoder.token(&Token { id, logprobs: None }));
    }
    let reason = if case["finish"] == "length" { FinishReason::Length } else { FinishReason::Stop };
    answer.take(decoder.end(reason));
    answer.json()
}

/// The answer that the file asks for.
fn expected(case: &Value) -> Value {
    let mut answer = case.get("ours").unwrap_or(&case["official"]).clone();
    if case["name"] == "prose after the block" {
        answer["content"] = json!("Done.");
    }
    for call_of in answer["calls"].as_array_mut().unwrap() {
        *call_of = call(call_of["name"].as_str().unwrap(), call_of["arguments"].as_str().unwrap());
    }
    answer
}

#[test]
fn outputs_are_parsed_as_officially() {
    let file: Value = serde_json::from_str(include_str!("../golden/outputs.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 56);
    let shipped = include_bytes!("../../../models/tiny/tokenizer.json");
    for (kind, tokenizer) in
        [("byte by byte", tokenizer()), ("in long tokens", ChatTokenizer::from_bytes(shipped).unwrap())]
    {
        let tokenizer = Arc::new(tokenizer);
        for case in cases {
            assert_eq!(parse(&tokenizer, case, &file["tools"]), expected(case), "{}, {kind}", case["name"]);
        }
    }
}
