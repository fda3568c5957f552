//! What follows the sentinel: `tool_calls>`, `invoke name="f">`, `parameter name="k" string="true">`.

const WRAPPERS: [&str; 4] = ["tool_calls", "function_calls", "toolcalls", "calls"];
/// A longer tag is no tag.
const MAX_LEN: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Wrapper,
    Invoke { name: String, empty: bool },
    Parameter { key: String, string: bool },
}

/// What the text behind a sentinel is so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// More text is needed.
    Partial,
    Whole(Tag),
    /// Not markup.
    Junk,
}

/// Reads an opening tag. `ended`: no more of it will come.
pub(super) fn opening(text: &str, ended: bool) -> Reading {
    let body = text.trim_start_matches(' ');
    if let Some(rest) = body.strip_prefix("invoke") {
        return named(rest, ended, |name, attributes| Tag::Invoke {
            name,
            empty: attributes.trim_end().ends_with('/'),
        });
    }
    if let Some(rest) = body.strip_prefix("parameter") {
        return named(rest, ended, |key, attributes| Tag::Parameter {
            key,
            string: !attributes.contains("string=\"false\""),
        });
    }
    plain(body, ended)
}

/// Reads a closing tag; the names of closed calls and parameters do not matter.
pub(super) fn closing(text: &str, ended: bool) -> Reading {
    plain(text.trim_start_matches(' '), ended)
}

/// A tag without attributes.
fn plain(body: &str, ended: bool) -> Reading {
    let name = body.trim_end_matches('>').trim_end();
    if body.ends_with('>') || ended {
        return match name {
            "invoke" => Reading::Whole(Tag::Invoke { name: String::new(), empty: false }),
            "parameter" => Reading::Whole(Tag::Parameter { key: String::new(), string: true }),
            _ if WRAPPERS.contains(&name) => Reading::Whole(Tag::Wrapper),
            _ => Reading::Junk,
        };
    }
    let known = || WRAPPERS.iter().chain(&["invoke", "parameter"]);
    let possible = known().any(|tag| tag.starts_with(body) || body.strip_prefix(tag).is_some_and(is_blank));
    if possible { Reading::Partial } else { Reading::Junk }
}

fn is_blank(text: &str) -> bool {
    text.len() < 8 && text.chars().all(|c| c == ' ')
}

/// ` name="NAME"ATTRIBUTES>`.
fn named(rest: &str, ended: bool, make: impl FnOnce(String, &str) -> Tag) -> Reading {
    const HEAD: &str = " name=\"";
    let open = if ended { Reading::Junk } else { Reading::Partial };
    let Some(quoted) = rest.strip_prefix(HEAD) else {
        return if HEAD.starts_with(rest) { open } else { Reading::Junk };
    };
    let Some((name, attributes)) = quoted.split_once('"') else {
        return if quoted.contains('\n') || quoted.len() > MAX_LEN { Reading::Junk } else { open };
    };
    if name.is_empty() {
        return Reading::Junk;
    }
    match attributes.split_once('>') {
        Some((attributes, _)) => Reading::Whole(make(name.to_owned(), attributes)),
        None if ended => Reading::Whole(make(name.to_owned(), attributes)),
        None if attributes.len() > MAX_LEN => Reading::Junk,
        None => Reading::Partial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invoke(name: &str, empty: bool) -> Reading {
        Reading::Whole(Tag::Invoke { name: name.into(), empty })
    }

    #[test]
    fn opening_tags() {
        for (text, expected) in [
            ("", Reading::Partial),
            ("tool_ca", Reading::Partial),
            ("tool_calls>", Reading::Whole(Tag::Wrapper)),
            (" calls>", Reading::Whole(Tag::Wrapper)),
            ("invoke name=\"f\">", invoke("f", false)),
            ("invoke name=\"f\"/>", invoke("f", true)),
            ("invoke name=\"f\" ", Reading::Partial),
            ("invoke name=\"\">", Reading::Junk),
            ("invoke nome", Reading::Junk),
            ("parameter name=\"k\">", Reading::Whole(Tag::Parameter { key: "k".into(), string: true })),
            (
                "parameter name=\"k\" string=\"false\">",
                Reading::Whole(Tag::Parameter { key: "k".into(), string: false }),
            ),
            ("something", Reading::Junk),
        ] {
            assert_eq!(opening(text, false), expected, "{text}");
        }
    }

    #[test]
    fn closing_tags() {
        let parameter = Reading::Whole(Tag::Parameter { key: String::new(), string: true });
        for (text, expected) in [
            ("", Reading::Partial),
            ("in", Reading::Partial),
            ("invoke>", invoke("", false)),
            ("parameter>", parameter),
            ("function_calls>", Reading::Whole(Tag::Wrapper)),
            ("div>", Reading::Junk),
        ] {
            assert_eq!(closing(text, false), expected, "{text}");
        }
    }

    #[test]
    fn an_interrupted_tag_is_read_as_far_as_it_goes() {
        assert_eq!(opening("invoke name=\"f\"", true), invoke("f", false));
        assert_eq!(opening("invoke name=\"f", true), Reading::Junk);
        assert_eq!(closing("invoke", true), invoke("", false));
    }
}
