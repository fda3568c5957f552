//! Outputs that broke parsers elsewhere, one line each.

use flashlane_server::dsml::{Start, ToolSchemas};

use crate::notation::{Answer, parse, parse_pieces, pieces};

const CALL: &str = "<¦tool_calls>\n<¦invoke name=\"f\">\n<¦parameter name=\"a\" string=\"true\">x</¦parameter>\n\
                    </¦invoke>\n</¦tool_calls>";

/// A tool block around `body`, which is the inside of one call of `f`.
fn call(body: &str) -> String {
    format!("<¦tool_calls>\n<¦invoke name=\"f\">{body}</¦invoke>\n</¦tool_calls>")
}

fn param(key: &str, string: bool, value: &str) -> String {
    format!("<¦parameter name=\"{key}\" string=\"{string}\">{value}</¦parameter>")
}

fn json(value: &str) -> String {
    call(&param("n", false, value))
}

fn text(answer: &Answer) -> (&str, &str, Vec<(&str, &str)>) {
    let calls = answer.calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
    (&answer.reasoning, &answer.content, calls)
}

type Row<'a> = (&'a str, &'a str, String, (&'a str, &'a str, Vec<(&'a str, &'a str)>));

/// Starting in reasoning: name, output, (reasoning, content, calls).
#[test]
fn reasoning() {
    let x = ("f", r#"{"a": "x"}"#);
    let rows: Vec<Row<'_>> = vec![
        ("think and answer", "", "\n\nwhy\n\n§\n\nyes".into(), ("why", "yes", vec![])),
        ("no end of thinking", "implicit", "all of it".into(), ("all of it", "", vec![])),
        ("call inside think, never closed", "implicit", format!("let me\n\n{CALL}"), ("let me", "", vec![x])),
        (
            "call inside think, then answer",
            "implicit,after",
            format!("hm{CALL}§done"),
            ("hm", "done", vec![x]),
        ),
        ("think end twice", "", "a§b§c".into(), ("a", "bc", vec![])),
        ("think start twice", "", "a¤b§c".into(), ("ab", "c", vec![])),
        ("angle bracket before think end", "", "1 <§c".into(), ("1 <", "c", vec![])),
        ("stray sentinel in reasoning", "malformed,implicit", "a ¦ b".into(), ("a  b", "", vec![])),
    ];
    check(&Start::Reasoning, rows);
}

/// Starting in content.
#[test]
fn blocks() {
    let x = ("f", r#"{"a": "x"}"#);
    let two = CALL.replace("</¦invoke>", "</¦invoke>\n<¦invoke name=\"g\">\n</¦invoke>");
    let bare = CALL.replace("<¦tool_calls>\n", "").replace("\n</¦tool_calls>", "");
    let rows: Vec<Row<'_>> = vec![
        ("newlines before a block", "", format!("Hello \n\n{CALL}"), ("", "Hello ", vec![x])),
        ("two calls in a block", "", two, ("", "", vec![x, ("g", "{}")])),
        ("two blocks", "", format!("{CALL}\n{CALL}"), ("", "", vec![x, x])),
        ("no wrapper", "", bare.clone(), ("", "", vec![x])),
        ("no wrapper, then text", "after", format!("{bare}\nok"), ("", "ok", vec![x])),
        (
            "no wrapper, unknown tool",
            "malformed",
            "<¦invoke name=\"zz\">".into(),
            ("", "<invoke name=\"zz\">", vec![]),
        ),
        (
            "no wrapper, never closes",
            "malformed",
            "see <¦invoke name=\"f\"> for it".into(),
            ("", "see <invoke name=\"f\"> for it", vec![]),
        ),
        ("function_calls wrapper", "", CALL.replace("tool_calls", "function_calls"), ("", "", vec![x])),
        ("toolcalls wrapper", "", CALL.replace("tool_calls", "toolcalls"), ("", "", vec![x])),
        (
            "spaced names",
            "",
            CALL.replace("¦tool_calls", "¦ calls").replace("¦in", "¦ in"),
            ("", "", vec![x]),
        ),
        ("wrapper not closed", "", CALL.replace("\n</¦tool_calls>", ""), ("", "", vec![x])),
        ("call not closed, block is", "malformed", CALL.replace("</¦invoke>\n", ""), ("", "", vec![x])),
        ("text in the block", "", CALL.replace("<¦invoke", "well: <¦invoke"), ("", "", vec![x])),
        ("prose after the block", "after", format!("{CALL}\n\nso"), ("", "so", vec![x])),
        ("blanks after the block", "", format!("{CALL}\n \n"), ("", "", vec![x])),
        ("closer repeated, then think end", "", format!("{CALL}</¦tool_calls>§"), ("", "", vec![x])),
        ("undeclared tool", "unknown", CALL.replace("\"f\"", "\"zz\""), ("", "", vec![("zz", x.1)])),
        (
            "quote in the name",
            "unknown",
            CALL.replace("\"f\"", "\"f\"x\"").replace("\"f\"", "\"h\""),
            ("", "", vec![("h", x.1)]),
        ),
        ("less-than at the end", "held", "2 <".into(), ("", "2 <", vec![])),
        ("newlines at the end", "held", "2\n\n".into(), ("", "2\n\n", vec![])),
        (
            "spelled sentinel",
            "",
            "<｜ b <｜DSM is <｜DSML｜".into(),
            ("", "<｜ b <｜DSM is <｜DSML｜", vec![]),
        ),
        (
            "spelled markup",
            "",
            "<｜DSML｜invoke name= is used".into(),
            ("", "<｜DSML｜invoke name= is used", vec![]),
        ),
        (
            "look-alike bars",
            "",
            "<|DSML|tool_calls> <｜｜DSML｜｜x ‖DSML‖".into(),
            ("", "<|DSML|tool_calls> <｜｜DSML｜｜x ‖DSML‖", vec![]),
        ),
        ("sentinel without angle bracket", "malformed", "a ¦ b".into(), ("", "a  b", vec![])),
        ("sentinel before prose", "malformed", "a\n<¦div> b".into(), ("", "a\n<div> b", vec![])),
        ("parameter outside a call", "malformed", "<¦parameter name=\"a\">x".into(), ("", "x", vec![])),
        ("end token spelled", "", "a<｜end▁of▁sentence｜>b".into(), ("", "a<｜end▁of▁sentence｜>b", vec![])),
        ("end token", "", "a¶b".into(), ("", "a", vec![])),
        ("the model thinks on its own", "", "¤why§yes".into(), ("why", "yes", vec![])),
    ];
    check(&Start::Content, rows);
}

#[test]
fn values() {
    let a = |value: &str| call(&param("a", true, value));
    let f = |arguments: &'static str| ("", "", vec![("f", arguments)]);
    let rows: Vec<Row<'_>> = vec![
        ("no arguments: newline", "", call("\n"), f("{}")),
        ("no arguments: none", "", call(""), f("{}")),
        ("no arguments: slash", "", "<¦tool_calls><¦invoke name=\"f\"/></¦tool_calls>".into(), f("{}")),
        ("body is an object", "", call("\n{\"a\": \"<x\"}\n"), f(r#"{"a": "<x"}"#)),
        ("body is no object", "malformed", call("{a}"), f(r#"{"arguments": "{a}"}"#)),
        ("envelope", "", call(&param("arguments", false, r#" {"a": 1} "#)), f(r#"{"a": 1}"#)),
        ("envelope as string", "", call(&param("input", true, r#"{"n": 1}"#)), f(r#"{"n": 1}"#)),
        (
            "envelope of unknown keys",
            "",
            call(&param("input", false, r#"{"q": 1}"#)),
            f(r#"{"input": {"q": 1}}"#),
        ),
        (
            "envelope and more",
            "",
            call(&(param("input", false, r#"{"n": 1}"#) + &param("n", false, "2"))),
            f(r#"{"input": {"n": 1}, "n": 2}"#),
        ),
        ("mismatched brackets", "malformed", json("{[}"), f(r#"{"n": "{[}"}"#)),
        ("not a number", "malformed", json("NaN"), f(r#"{"n": "NaN"}"#)),
        ("empty value", "malformed", json(""), f(r#"{"n": ""}"#)),
        ("two values", "malformed", json("1, 2"), f(r#"{"n": "1, 2"}"#)),
        ("Python literal, type agrees", "", call(&param("b", false, "True")), f(r#"{"b": true}"#)),
        ("Python literal, one branch agrees", "", call(&param("u", false, "False")), f(r#"{"u": false}"#)),
        ("Python None", "", call(&param("b", false, "None")), f(r#"{"b": null}"#)),
        ("Python literal, type disagrees", "malformed", json("True"), f(r#"{"n": "True"}"#)),
        (
            "bare word where the schema says string",
            "",
            call(&param("a", false, "word")),
            f(r#"{"a": "word"}"#),
        ),
        ("JSON is kept as written", "", json(" {\"k\" : [1,2 ]}\n"), f(r#"{"n": {"k" : [1,2 ]}}"#)),
        ("digit as string", "", call(&param("n", true, "5")), f(r#"{"n": "5"}"#)),
        ("number for a string", "", call(&param("a", false, "5")), f(r#"{"a": 5}"#)),
        ("escapes", "", a("q\" b\\ t\t n\n <b>&amp;"), f(r#"{"a": "q\" b\\ t\t n\n <b>&amp;"}"#)),
        ("wide characters", "", a("🦀漢e\u{301}"), f("{\"a\": \"🦀漢e\u{301}\"}")),
        ("control characters", "", a("\0\u{1b}\u{7f}"), f("{\"a\": \"\\u0000\\u001b\u{7f}\"}")),
        ("spaces of a string are its own", "", a(" x\n"), f(r#"{"a": " x\n"}"#)),
        ("string attribute missing", "", call("<¦parameter name=\"a\">x</¦parameter>"), f(r#"{"a": "x"}"#)),
        ("sentinel in a value", "", a("<¦b> ¦ </¦c>"), f(r#"{"a": "<｜DSML｜b> ｜DSML｜ </｜DSML｜c>"}"#)),
        ("spelled closer in a value", "", a("</｜DSML｜parameter>"), f(r#"{"a": "</｜DSML｜parameter>"}"#)),
        ("think tokens in a value", "", a("¤ §"), f(r#"{"a": "<think> </think>"}"#)),
        ("angle brackets in a value", "", a("<</<"), f(r#"{"a": "<</<"}"#)),
        ("parameter not closed", "", call("<¦parameter name=\"a\" string=\"true\">x"), f(r#"{"a": "x"}"#)),
    ];
    check(&Start::Content, rows);
}

#[test]
fn a_repeated_parameter_keeps_the_last_value() {
    let answer = parse(Start::Content, &call(&(param("a", true, "1") + &param("a", true, "2"))));
    let value: serde_json::Value = serde_json::from_str(&answer.calls[0].1).unwrap();
    assert_eq!(value, serde_json::json!({"a": "2"}));
}

/// Where the output stops, what the client gets: calls, and whether the last of them is cut.
#[test]
fn cuts() {
    for (name, kept, calls, cut) in [
        ("inside the wrapper", "<¦tool_c", vec![], false),
        ("inside the name", "<¦tool_calls>\n<¦invoke name=\"f", vec![], false),
        ("before any parameter", "<¦tool_calls>\n<¦invoke name=\"f\">\n", vec![], false),
        (
            "inside a value",
            "<¦tool_calls>\n<¦invoke name=\"f\">\n<¦parameter name=\"a\" string=\"true\">hel",
            vec![r#"{"a": "hel"}"#],
            true,
        ),
        (
            "inside the closing tag",
            "<¦tool_calls>\n<¦invoke name=\"f\"><¦parameter name=\"a\">Paris</¦para",
            vec![r#"{"a": "Paris"}"#],
            true,
        ),
        (
            "before the sentinel of it",
            "<¦tool_calls>\n<¦invoke name=\"f\"><¦parameter name=\"a\">Paris</",
            vec![r#"{"a": "Paris"}"#],
            true,
        ),
        (
            "inside a number",
            "<¦tool_calls><¦invoke name=\"f\"><¦parameter name=\"n\" string=\"false\">12",
            vec![],
            false,
        ),
        (
            "inside a second call's name",
            &format!("{}<¦invoke name=\"g", CALL.replace("\n</¦tool_calls>", "")),
            vec![r#"{"a": "x"}"#],
            false,
        ),
    ] {
        let answer = parse(Start::Content, kept);
        let arguments: Vec<&str> = answer.calls.iter().map(|(_, arguments)| arguments.as_str()).collect();
        assert_eq!((arguments, answer.ending.cut, answer.content.as_str()), (calls, cut, ""), "{name}");
    }
}

#[test]
fn forced_calls_begin_inside_the_block() {
    let inside = &CALL["<¦tool_calls>\n".len()..];
    let answer = parse(Start::Block, inside);
    assert_eq!(text(&answer), ("", "", vec![("f", r#"{"a": "x"}"#)]));
    let inside = &inside["<¦invoke name=\"f\">\n".len()..];
    let answer = parse(Start::Call("f".into()), inside);
    assert_eq!(text(&answer), ("", "", vec![("f", r#"{"a": "x"}"#)]));
    assert_eq!(answer.ending.calls, 1);
}

#[test]
fn without_tools_a_block_is_neither_a_call_nor_content() {
    let answer = parse_pieces(Start::Content, ToolSchemas::default(), pieces(&format!("a\n{CALL}b")));
    assert_eq!(text(&answer), ("", "ab", vec![]));
    assert_eq!(answer.ending.calls, 0);
}

#[test]
fn a_continued_answer_keeps_its_newlines() {
    assert_eq!(parse(Start::Continuation, "\n\nx").content, "\n\nx");
    assert_eq!(parse(Start::Content, "\n\nx").content, "x");
}

fn check(start: &Start, rows: Vec<Row<'_>>) {
    for (name, counted, output, expected) in rows {
        let answer = parse(start.clone(), &output);
        assert_eq!(text(&answer), expected, "{name}");
        assert_eq!(answer.ending.calls, answer.calls.len(), "{name}: every call is complete");
        let counters = answer.counters;
        let by_name = [
            ("malformed", counters.malformed_calls),
            ("implicit", counters.implicit_think_end),
            ("held", counters.held_flush),
            ("after", counters.text_after_block),
            ("unknown", counters.unknown_tool),
        ];
        let seen: Vec<&str> = by_name.iter().filter(|(_, n)| *n > 0).map(|(name, _)| *name).collect();
        let mut wanted: Vec<&str> = counted.split(',').filter(|name| !name.is_empty()).collect();
        wanted.sort_by_key(|name| by_name.iter().position(|(known, _)| known == name));
        assert_eq!(seen, wanted, "{name}: counters");
    }
}
