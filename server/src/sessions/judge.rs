//! What was wrong with an answer, in the classes of the reported experiment.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::Answer;
use super::script::Expected;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Tool-call markup in the content.
    Leak,
    /// No call where one was due.
    NoTool,
    /// No answer.
    Error,
    /// Still calling tools when the rounds were used up.
    MaxRounds,
    /// Answered to the end.
    Done,
}

impl Class {
    pub const ALL: [Self; 5] = [Self::Leak, Self::NoTool, Self::Error, Self::MaxRounds, Self::Done];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::NoTool => "no_tool",
            Self::Error => "error",
            Self::MaxRounds => "maxrounds",
            Self::Done => "done",
        }
    }

    /// Counts as a corruption.
    pub const fn corrupt(self) -> bool {
        matches!(self, Self::Leak | Self::NoTool | Self::Error)
    }
}

/// What was wrong although the form was right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// An argument that differs from the oracle's.
    pub wrong_value: bool,
    /// Another tool than the oracle's, or more calls than one.
    pub wrong_tool: bool,
    /// Text behind a call.
    pub stray: bool,
    /// Text that differs from the oracle's.
    pub wrong_text: bool,
}

impl Faults {
    pub fn any(self) -> bool {
        self.wrong_value || self.wrong_tool || self.stray || self.wrong_text
    }
}

impl std::ops::BitOrAssign for Faults {
    fn bitor_assign(&mut self, other: Self) {
        self.wrong_value |= other.wrong_value;
        self.wrong_tool |= other.wrong_tool;
        self.stray |= other.stray;
        self.wrong_text |= other.wrong_text;
    }
}

/// The judgement of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The session ends with it; `None`: the next round follows.
    pub class: Option<Class>,
    pub faults: Faults,
}

/// Spellings that no client should ever see in content.
const MARKUP: [&str; 8] =
    ["｜DSML｜", "<｜", "tool_calls>", "<invoke", "</invoke>", "parameter name=", "<think>", "</think>"];

/// Judges the answer of one turn.
pub fn judge(answer: &Answer, expected: &Expected) -> Judged {
    let as_expected = answer.content == expected.content;
    let mut faults = Faults { stray: answer.stray, wrong_text: !as_expected, ..Faults::default() };
    let leaked = !as_expected && MARKUP.iter().any(|markup| answer.content.contains(markup));
    let class = match (&expected.call, answer.calls.first()) {
        _ if leaked => Some(Class::Leak),
        (Some(_), None) => Some(Class::NoTool),
        (None, Some(_)) => Some(Class::MaxRounds),
        (None, None) => Some(Class::Done),
        (Some((name, arguments)), Some(call)) => {
            let called: Result<Value, _> = serde_json::from_str(&call.arguments);
            faults.wrong_tool = call.name != *name || answer.calls.len() > 1;
            faults.wrong_value = call.name == *name && called.ok().as_ref() != Some(arguments);
            None
        }
    };
    Judged { class, faults }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Class, Faults, judge};
    use crate::sessions::{Answer, Called, Expected};

    fn call() -> Expected {
        Expected { call: Some(("open".to_owned(), json!({"box": "A", "code": "1X"}))), ..text("") }
    }

    fn text(content: &str) -> Expected {
        Expected { messages: 1, start: 1, ids: Vec::new(), call: None, content: content.to_owned() }
    }

    fn said(content: &str, calls: &[(&str, &str)]) -> Answer {
        let calls = calls
            .iter()
            .map(|(name, arguments)| Called { name: (*name).to_owned(), arguments: (*arguments).to_owned() });
        Answer { content: content.to_owned(), calls: calls.collect(), ..Answer::default() }
    }

    #[test]
    fn every_class_and_fault() {
        let none = Faults::default();
        let right = r#"{"code":"1X","box":"A"}"#;
        let text_differs = Faults { wrong_text: true, ..none };
        let cases = [
            (call(), said("", &[("open", right)]), None, none),
            (
                call(),
                said("", &[("open", r#"{"box":"A","code":"1Y"}"#)]),
                None,
                Faults { wrong_value: true, ..none },
            ),
            (call(), said("", &[("open", r#"{"box":"A""#)]), None, Faults { wrong_value: true, ..none }),
            (call(), said("", &[("close", right)]), None, Faults { wrong_tool: true, ..none }),
            (
                call(),
                said("", &[("open", right), ("open", right)]),
                None,
                Faults { wrong_tool: true, ..none },
            ),
            (call(), said("I open it", &[]), Some(Class::NoTool), text_differs),
            (call(), said("", &[]), Some(Class::NoTool), none),
            (call(), said("<｜DSML｜tool_calls>", &[]), Some(Class::Leak), text_differs),
            (call(), said("\"box\" parameter name=", &[("open", right)]), Some(Class::Leak), text_differs),
            (text("ok"), said("ok", &[]), Some(Class::Done), none),
            (text("ok"), said("no", &[]), Some(Class::Done), text_differs),
            (text("ok"), said("", &[("open", right)]), Some(Class::MaxRounds), text_differs),
            (text("It is <think>."), said("It is <think>.", &[]), Some(Class::Done), none),
        ];
        for (expected, answer, class, faults) in cases {
            let judged = judge(&answer, &expected);
            assert_eq!((judged.class, judged.faults), (class, faults), "{answer:?}");
        }
        let stray = Answer { stray: true, ..said("", &[("open", right)]) };
        assert_eq!(judge(&stray, &call()).faults, Faults { stray: true, ..none });
    }

    #[test]
    fn only_three_classes_are_corruptions() {
        let corrupt: Vec<&str> = Class::ALL.into_iter().filter(|c| c.corrupt()).map(Class::name).collect();
        assert_eq!(corrupt, ["leak", "no_tool", "error"]);
    }
}
