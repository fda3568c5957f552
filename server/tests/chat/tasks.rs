//! The built-in model is trained on what the task generator renders, and asked through the server's encoder: both must write
//! the same tokens.

use fastrand::Rng;
use flashlane_server::chat::{ChatTokenizer, render};
use flashlane_server::openai::ChatRequest;
use flashlane_server::tasks::conversation::{Conversation, Mode, Role};
use flashlane_server::tasks::export;
use flashlane_server::tasks::items::{Kind, Shape, item};
use flashlane_server::tasks::lexicon::Lexicon;
use flashlane_server::tasks::session;
use serde_json::{Value, json};

fn shipped_tokenizer() -> ChatTokenizer {
    ChatTokenizer::from_bytes(include_bytes!("../../../models/tiny/tokenizer.json")).unwrap()
}

/// The prompt that a request with these fields gets.
fn prompt(tokenizer: &ChatTokenizer, request: Value) -> Vec<u32> {
    let mut body = request;
    body["model"] = json!("m");
    let conversation = ChatRequest::read(&body, false).unwrap().conversation;
    tokenizer.encode(render(&conversation).pieces.as_slice(), 1 << 20).unwrap()
}

/// Where the two differ, as text.
fn difference(lexicon: &Lexicon, served: &[u32], trained: &[u16]) -> Option<String> {
    let trained: Vec<u32> = trained.iter().map(|&id| id.into()).collect();
    if served == trained {
        return None;
    }
    let same = served.iter().zip(&trained).take_while(|(a, b)| a == b).count();
    let around = |ids: &[u32]| {
        let ids: Vec<u16> =
            ids.iter().skip(same.saturating_sub(8)).take(24).map(|&id| u16::try_from(id).unwrap()).collect();
        format!("{ids:?} {:?}", lexicon.decode(&ids).unwrap())
    };
    Some(format!("token {same}: served {} trained {}", around(served), around(&trained)))
}

#[test]
fn requests_of_every_kind_render_to_the_ids_of_training() {
    let (lexicon, tokenizer) = (Lexicon::load().unwrap(), shipped_tokenizer());
    let kinds = <Kind as clap::ValueEnum>::value_variants();
    let mut prompts = 0;
    for &kind in kinds {
        for index in 0..40 {
            let shape = Shape { kind, ctx: 100 + 23 * index as usize, rounds: 3, thinking: index % 3 == 2 };
            let item = item(&lexicon, shape, 21, index);
            let told = export::item(&item, shape, 21, index).unwrap();
            // A rule is always rendered without reasoning.
            let thinking = item.conv.mode == Mode::Thinking;
            for turn in told["turns"].as_array().unwrap() {
                let messages =
                    &told["messages"].as_array().unwrap()[..turn["messages"].as_u64().unwrap() as usize];
                let mut request = json!({
                    "messages": messages, "tool_choice": told["tool_choice"],
                    "chat_template_kwargs": {"thinking": thinking},
                });
                if let Some(tools) = told.get("tools") {
                    request["tools"] = tools.clone();
                }
                let start = turn["start"].as_u64().unwrap() as usize;
                let differs = difference(&lexicon, &prompt(&tokenizer, request), &item.conv.ids[..start]);
                assert_eq!(differs, None, "{kind:?} {index}");
                prompts += 1;
            }
        }
    }
    assert!(prompts > 40 * kinds.len(), "walks have several prompts: {prompts}");
}

/// The request that `conv` answers with its last reply, and where that reply begins.
fn last_request(conv: &Conversation<'_>) -> Option<(Value, usize)> {
    let last = conv.turns.iter().rposition(|turn| turn.role == Role::Assistant)?;
    let mut asked = conv.clone();
    let start = asked.turns.split_off(last)[0].reasoning.start;
    let mut request = json!({"messages": export::messages(&asked).unwrap()});
    let text = conv.lexicon.decode(&conv.ids[..start]).unwrap();
    let effort = match conv.mode {
        Mode::Chat => "none",
        Mode::Thinking if text.contains("Reasoning Effort: ") => "max",
        Mode::Thinking => "high",
    };
    request["reasoning_effort"] = effort.into();
    if !conv.schemas.is_empty() {
        request["tools"] = export::tools(conv).unwrap();
    }
    Some((request, start))
}

#[test]
fn training_sequences_are_conversations_that_the_server_renders_alike() {
    let (lexicon, tokenizer) = (Lexicon::load().unwrap(), shipped_tokenizer());
    let mut rng = Rng::with_seed(9);
    let mut efforts = [0; 3];
    for stage in 0..4 {
        for index in 0..60 {
            let conv = session::sequence(&lexicon, &mut rng, &session::profile(stage), 1025);
            let Some((request, start)) = last_request(&conv) else { continue };
            efforts
                [["none", "high", "max"].iter().position(|e| request["reasoning_effort"] == *e).unwrap()] +=
                1;
            let differs = difference(&lexicon, &prompt(&tokenizer, request), &conv.ids[..start]);
            assert_eq!(differs, None, "stage {stage}, sequence {index}");
        }
    }
    assert!(efforts.iter().all(|&count| count > 0), "{efforts:?}");
}
