//! Properties over generated outputs: fragments of markup in any order, cut anywhere.

use flashlane_server::dsml::Start;
use proptest::prelude::*;

use crate::notation::{Answer, control, parse, parse_pieces, schemas};

fn output() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        4 => Just("<¦tool_calls>\n".to_owned()),
        4 => Just("</¦tool_calls>".to_owned()),
        6 => "[fgz]".prop_map(|name| format!("<¦invoke name=\"{name}\">\n")),
        6 => Just("</¦invoke>\n".to_owned()),
        6 => ("[abnu]|arguments|input", any::<bool>())
            .prop_map(|(key, string)| format!("<¦parameter name=\"{key}\" string=\"{string}\">")),
        6 => Just("</¦parameter>\n".to_owned()),
        3 => "[¦§¤<>/\n\"{}\\[\\]:,1ae é🦀\\\\]{0,6}",
        3 => prop_oneof![Just("{\"a\": 1}"), Just("True"), Just("12"), Just("[1"), Just("text")]
            .prop_map(str::to_owned),
    ];
    (proptest::collection::vec(fragment, 0..24), any::<bool>())
        .prop_map(|(fragments, end)| fragments.concat() + if end { "¶" } else { "" })
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        Just(Start::Reasoning),
        Just(Start::Content),
        Just(Start::Continuation),
        Just(Start::Block),
        Just(Start::Call("f".to_owned())),
    ]
}

/// Cuts at control characters and wherever `cuts` says so.
fn cut<'a>(output: &'a str, cuts: &[bool]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut after_control = false;
    for (i, (at, c)) in output.char_indices().enumerate() {
        let wanted = cuts.get(i % cuts.len().max(1)).copied().unwrap_or(true);
        if at > start && (wanted || after_control || control(c).is_some()) {
            pieces.push(&output[start..at]);
            start = at;
        }
        after_control = control(c).is_some();
    }
    pieces.push(&output[start..]);
    pieces
}

fn check(output: &str, answer: &Answer) {
    for (call, ended) in answer.calls.iter().zip(&answer.ended) {
        let arguments: Result<serde_json::Value, _> = serde_json::from_str(&call.1);
        assert!(arguments.is_ok_and(|a| a.is_object()), "{output:?}: arguments {:?}", call.1);
        assert!(*ended || answer.ending.cut, "{output:?}: an unfinished call is reported");
    }
    let ended = answer.ended.iter().filter(|ended| **ended).count();
    assert_eq!(ended, answer.ending.calls, "{output:?}");
    for text in [&answer.reasoning, &answer.content] {
        assert!(!text.contains("DSML") && !text.contains('¦'), "{output:?}: markup in {text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cut_does_not_matter(
        output in output(),
        start in start(),
        cuts in proptest::collection::vec(any::<bool>(), 1..20),
    ) {
        let whole = parse(start.clone(), &output);
        check(&output, &whole);
        let split = parse_pieces(start, schemas(), cut(&output, &cuts));
        prop_assert_eq!(whole, split);
    }

    #[test]
    fn text_without_control_tokens_comes_back_whole(text in "[<>/\n a｜DSML\"=]{0,40}") {
        let answer = parse(Start::Continuation, &text);
        prop_assert_eq!(answer.content, text);
        prop_assert!(answer.calls.is_empty());
    }
}
