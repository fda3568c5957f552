//! What the parser needs of the declared tools: their names, and the JSON types of their parameters.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Declared functions by name.
#[derive(Clone, Debug, Default)]
pub struct ToolSchemas(HashMap<String, Map<String, Value>>);

impl ToolSchemas {
    /// `tools`: name and JSON schema of the parameters.
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, &'a Map<String, Value>)>) -> Self {
        let properties = |schema: &Map<String, Value>| {
            schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default()
        };
        Self(tools.into_iter().map(|(name, schema)| (name.to_owned(), properties(schema))).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn declares(&self, tool: &str) -> bool {
        self.0.contains_key(tool)
    }

    pub fn has_parameter(&self, tool: &str, name: &str) -> bool {
        self.0.get(tool).is_some_and(|properties| properties.contains_key(name))
    }

    /// Whether the schema of a parameter names this JSON type; one level of `anyOf`/`oneOf` is looked into.
    pub fn allows(&self, tool: &str, parameter: &str, kind: &str) -> bool {
        let Some(schema) = self.0.get(tool).and_then(|p| p.get(parameter)) else { return false };
        let branches = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
        std::iter::once(schema).chain(branches).any(|schema| names_type(&schema["type"], kind))
    }
}

fn names_type(declared: &Value, kind: &str) -> bool {
    match declared {
        Value::String(one) => one == kind,
        Value::Array(many) => many.iter().any(|one| one == kind),
        _ => false,
    }
}
