//! The arguments object of one call, written piece by piece.

use super::values;

/// Writes `{"k": v, …}` in fragments whose concatenation is valid JSON once [`Arguments::close`] was called.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    keys: Vec<String>,
    pub repeated_key: bool,
    open_string: bool,
}

impl Arguments {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// `{"key": ` or `, "key": `.
    pub(super) fn key(&mut self, key: &str) -> String {
        let separator = if self.keys.is_empty() { "{" } else { ", " };
        self.repeated_key |= self.keys.iter().any(|known| known == key);
        self.keys.push(key.to_owned());
        format!("{separator}{}: ", values::json_string(key))
    }

    pub(super) fn open_string(&mut self, key: &str) -> String {
        self.open_string = true;
        self.key(key) + "\""
    }

    pub(super) fn close_string(&mut self) -> Option<&'static str> {
        std::mem::take(&mut self.open_string).then_some("\"")
    }

    /// What is missing to make the object whole.
    pub(super) fn close(&mut self) -> String {
        let string = self.close_string().unwrap_or_default();
        let brace = if self.keys.is_empty() { "{}" } else { "}" };
        format!("{string}{brace}")
    }
}
