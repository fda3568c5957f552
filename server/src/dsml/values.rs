//! Parameter values: from what the model wrote to JSON text that parses.

use serde_json::{Map, Value};

use super::schema::ToolSchemas;

/// A JSON value for a `string="false"` body, and whether the body had to be repaired.
pub(super) fn json_value(text: &str, schemas: &ToolSchemas, tool: &str, parameter: &str) -> (String, bool) {
    let text = text.trim();
    if is_json(text) {
        return (text.to_owned(), false);
    }
    let allows = |kind| schemas.allows(tool, parameter, kind);
    match text {
        "True" if allows("boolean") => ("true".to_owned(), false),
        "False" if allows("boolean") => ("false".to_owned(), false),
        "None" if allows("null") => ("null".to_owned(), false),
        _ => (json_string(text), !allows("string")),
    }
}

/// One valid JSON value, shallow enough to stay valid inside the arguments object.
pub(super) fn is_json(text: &str) -> bool {
    let parses = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    parses(text) && parses(&format!("[{text}]"))
}

pub(super) fn json_object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

pub(super) fn json_string(text: &str) -> String {
    Value::from(text).to_string()
}

/// The inside of a JSON string.
pub(super) fn escape(text: &str) -> String {
    let quoted = json_string(text);
    quoted[1..quoted.len() - 1].to_owned()
}
