//! Typed access to the fields of a JSON object, with the field's path in every error. `null` means absent.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::ApiError;

#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

type Read<T> = Result<Option<T>, ApiError>;

impl<'a> Fields<'a> {
    pub(super) fn top(value: &'a Value) -> Result<Self, ApiError> {
        let map = value.as_object().ok_or_else(|| {
            ApiError::invalid(format!("the body must be a JSON object, not {}", type_name(value)))
        })?;
        Ok(Self { map, path: String::new() })
    }

    /// The object at `path`.
    pub(super) fn at(value: &'a Value, path: String) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => {
                let message = format!("'{path}': expected an object, found {}", type_name(other));
                Err(ApiError::field(path, message))
            }
        }
    }

    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'a String> {
        self.map.keys()
    }

    pub(super) fn error(&self, name: &str, message: &str) -> ApiError {
        let path = self.path(name);
        ApiError::field(path.clone(), format!("'{path}': {message}"))
    }

    /// The field is not what it must be; names what it is.
    pub(super) fn unexpected(&self, name: &str, expected: &str) -> ApiError {
        let found = self.get(name).map_or_else(|| "nothing".to_owned(), shown);
        self.error(name, &format!("expected {expected}, found {found}"))
    }

    fn expected<T>(&self, name: &str, expected: &str, convert: impl Fn(&'a Value) -> Option<T>) -> Read<T> {
        let Some(value) = self.get(name) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.unexpected(name, expected))
    }

    pub(super) fn bool(&self, name: &str) -> Read<bool> {
        self.expected(name, "true or false", Value::as_bool)
    }

    pub(super) fn string(&self, name: &str) -> Read<&'a str> {
        self.expected(name, "a string", Value::as_str)
    }

    pub(super) fn array(&self, name: &str) -> Read<&'a Vec<Value>> {
        self.expected(name, "an array", Value::as_array)
    }

    pub(super) fn object(&self, name: &str) -> Read<Fields<'a>> {
        let map = self.expected(name, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { map, path: self.path(name) }))
    }

    pub(super) fn map(&self, name: &str) -> Read<&'a Map<String, Value>> {
        self.expected(name, "an object", Value::as_object)
    }

    pub(super) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Read<i64> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.expected(name, &expected, |value| integer(value).filter(|n| range.contains(n)))
    }

    /// A number in `low..=high`; `above` makes the lower end exclusive.
    pub(super) fn number(&self, name: &str, low: f64, high: f64, above: bool) -> Read<f64> {
        let start = if above { "above" } else { "from" };
        let expected = format!("a number {start} {low} to {high}");
        self.expected(name, &expected, |value| {
            value.as_f64().filter(|n| *n <= high && if above { *n > low } else { *n >= low })
        })
    }
}

/// An integer, also when it is written `16.0`.
pub(super) fn integer(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_i64().or_else(|| {
        let number = value.as_f64().filter(|n| value.is_f64() && n.fract() == 0.0 && n.abs() <= EXACT)?;
        #[expect(clippy::cast_possible_truncation, reason = "whole and at most 2^53")]
        Some(number as i64)
    })
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A short value as it is, a long one by its type.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= 40 { text } else { type_name(value).to_owned() }
}
