//! Items are what they claim: text and ids agree, and oracles follow from the text alone.

use fastrand::Rng;
use serde_json::Value;

use super::conversation::{Class, SpanKind};
use super::items::{Item, Kind, Shape, item};
use super::lexicon::{EOS, Lexicon};
use super::{export, session};

const KINDS: [Kind; 11] = [
    Kind::Walk,
    Kind::Needle,
    Kind::Recall,
    Kind::Trail,
    Kind::Unknown,
    Kind::Choice,
    Kind::None,
    Kind::Chat,
    Kind::Echo,
    Kind::Topic,
    Kind::Rule,
];

fn shape(kind: Kind, ctx: usize, thinking: bool) -> Shape {
    Shape { kind, ctx, rounds: 3, thinking }
}

fn for_each_item(count: u64, mut check: impl FnMut(&Lexicon, &Item<'_>, Shape, u64)) {
    let lexicon = Lexicon::load().unwrap();
    for kind in KINDS {
        for index in 0..count {
            let shape = shape(kind, 100 + 37 * index as usize, index % 4 == 3);
            check(&lexicon, &item(&lexicon, shape, 7, index), shape, index);
        }
    }
}

#[test]
fn encoding_the_text_of_an_item_gives_its_ids() {
    for_each_item(24, |lexicon, item, shape, index| {
        let text = lexicon.decode(&item.conv.ids).unwrap();
        assert_eq!(lexicon.encode(&text).unwrap(), item.conv.ids, "{shape:?} {index}: {text}");
    });
}

#[test]
fn encoding_the_text_of_a_training_sequence_gives_its_ids() {
    let lexicon = Lexicon::load().unwrap();
    let mut rng = Rng::with_seed(3);
    for stage in 0..4 {
        for _ in 0..30 {
            let conv = session::sequence(&lexicon, &mut rng, &session::profile(stage), 1025);
            let text = lexicon.decode(&conv.ids).unwrap();
            assert_eq!(lexicon.encode(&text).unwrap(), conv.ids, "stage {stage}: {text}");
            assert_eq!(conv.classes.len(), conv.ids.len());
        }
    }
}

#[test]
fn a_needle_prompt_has_the_asked_length() {
    let lexicon = Lexicon::load().unwrap();
    for length in 300..428 {
        let conv = item(&lexicon, shape(Kind::Needle, length, false), 1, length as u64).conv;
        let reply = conv.turns.last().unwrap().reasoning.start;
        assert_eq!(reply, length);
    }
}

#[test]
fn secrets_are_spelled_one_character_a_token() {
    for_each_item(16, |lexicon, item, _, _| {
        let looked_up = |kind| matches!(kind, SpanKind::Recall | SpanKind::CallCode | SpanKind::Finish);
        for span in item.conv.spans.iter().filter(|span| looked_up(span.kind)) {
            let ids: Vec<u16> =
                item.conv.ids[span.range.clone()].iter().copied().filter(|&id| id != EOS).collect();
            assert_eq!(lexicon.decode(&ids).unwrap().chars().count(), ids.len());
        }
    });
}

/// The latest text before the reply that states the key's value.
fn stated<'t>(prompt: &'t str, key: &str) -> Option<&'t str> {
    let forms = [
        format!("box {key}:"),
        format!("the code of {key} is "),
        format!("The code of {key} is "),
        format!("The code for {key} is "),
        format!("- {key}: "),
        format!("box {key} has code "),
        format!("\n{key}:"),
        format!(">{key}:"),
        format!("\n{key}="),
    ];
    let ends = forms.iter().filter_map(|form| prompt.rfind(form.as_str()).map(|at| at + form.len()));
    ends.max().map(|at| prompt[at..].split(['\n', '.', ',', ';']).next().unwrap_or_default())
}

#[test]
fn the_code_of_every_call_is_the_latest_one_stated() {
    let lexicon = Lexicon::load().unwrap();
    let mut calls = 0;
    for index in 0..60 {
        let conv = item(&lexicon, shape(Kind::Walk, 300, false), 11, index).conv;
        for turn in
            conv.turns.iter().filter(|turn| turn.call.as_ref().is_some_and(|call| call.params.len() == 2))
        {
            let call = turn.call.as_ref().unwrap();
            let prompt = lexicon.decode(&conv.ids[..turn.reasoning.start]).unwrap();
            let value = |i: usize| lexicon.decode(&conv.ids[call.params[i].value.clone()]).unwrap();
            assert_eq!(stated(&prompt, &value(0)), Some(value(1).as_str()), "item {index}: {}", value(0));
            calls += 1;
        }
    }
    assert_eq!(calls, 180);
}

#[test]
fn an_unknown_key_is_nowhere_in_the_prompt() {
    let lexicon = Lexicon::load().unwrap();
    for index in 0..60 {
        let conv = item(&lexicon, shape(Kind::Unknown, 300, false), 5, index).conv;
        let system = lexicon.decode(&conv.ids[conv.turns[0].content.clone()]).unwrap();
        let question = lexicon.decode(&conv.ids[conv.turns[1].content.clone()]).unwrap();
        let words: Vec<&str> = question.trim_end_matches(['?', '=']).split(' ').collect();
        let key = if question.contains("value") || question.contains('=') {
            words[words.len() - 1].to_owned()
        } else {
            words[words.len() - 2..].join(" ")
        };
        assert_eq!(stated(&system, &key), None, "{question}");
    }
}

#[test]
fn the_export_names_declared_tools_and_complete_calls() {
    let lexicon = Lexicon::load().unwrap();
    let shape = shape(Kind::Walk, 200, false);
    let json = export::item(&item(&lexicon, shape, 2, 0), shape, 2, 0).unwrap();
    let names: Vec<&Value> =
        json["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    let called: Vec<&Value> =
        json["turns"].as_array().unwrap().iter().filter_map(|turn| turn.get("call")).collect();
    assert_eq!(called.len(), 4, "three boxes and the end");
    assert!(called.iter().all(|call| names.contains(&&call["name"])));
    let ids = json["ids"].as_array().unwrap();
    for turn in json["turns"].as_array().unwrap() {
        assert_eq!(ids[turn["end"].as_u64().unwrap() as usize - 1], u64::from(EOS));
    }
}

#[test]
fn withheld_tools_are_not_in_the_prompt() {
    let lexicon = Lexicon::load().unwrap();
    let shape = shape(Kind::None, 0, false);
    let json = export::item(&item(&lexicon, shape, 2, 0), shape, 2, 0).unwrap();
    assert_eq!(json["tool_choice"], "none");
    assert_eq!(json["tools"].as_array().unwrap().len(), 4);
    assert!(!lexicon.decode(&item(&lexicon, shape, 2, 0).conv.ids).unwrap().contains("## Tools"));
}

#[test]
fn every_class_occurs_and_answers_are_hard() {
    for_each_item(4, |_, item, shape, _| {
        let hard = Class::Hard as u8;
        let spans = &item.conv.spans;
        assert!(!spans.is_empty(), "{shape:?}");
        assert!(
            spans.iter().all(|span| item.conv.classes[span.range.clone()].iter().all(|&class| class == hard))
        );
    });
}

#[test]
fn items_depend_on_seed_and_index_alone() {
    let lexicon = Lexicon::load().unwrap();
    let shape = shape(Kind::Walk, 300, false);
    assert_eq!(item(&lexicon, shape, 1, 5).conv.ids, item(&lexicon, shape, 1, 5).conv.ids);
    assert_ne!(item(&lexicon, shape, 1, 5).conv.ids, item(&lexicon, shape, 1, 6).conv.ids);
    assert_ne!(item(&lexicon, shape, 1, 5).conv.ids, item(&lexicon, shape, 2, 5).conv.ids);
}
