//! `tools` and `tool_choice`.

use serde_json::{Map, Value};

use super::ApiError;
use super::fields::Fields;
use crate::chat::{Tool, ToolChoice};

const MAX_NAME: usize = 128;

pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::new();
    for (i, value) in fields.array("tools")?.map_or(&[][..], Vec::as_slice).iter().enumerate() {
        let tool = Fields::at(value, format!("tools[{i}]"))?;
        if tool.string("type")? != Some("function") {
            return Err(tool.unexpected("type", "\"function\""));
        }
        let function = tool.object("function")?.ok_or_else(|| tool.error("function", "required"))?;
        let tool = read_function(&function)?;
        if tools.iter().any(|known| known.name == tool.name) {
            return Err(function.error("name", &format!("{:?} is declared twice", tool.name)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn read_function(function: &Fields<'_>) -> Result<Tool, ApiError> {
    let name = function.string("name")?.filter(|name| is_name(name));
    let name = name.ok_or_else(|| {
        function.unexpected("name", &format!("1 to {MAX_NAME} letters, digits, '_' or '-'"))
    })?;
    let mut parameters = function.map("parameters")?.cloned().unwrap_or_default();
    check_schema(&parameters, function)?;
    drop_nulls(&mut parameters);
    Ok(Tool {
        name: name.to_owned(),
        description: function.string("description")?.unwrap_or_default().to_owned(),
        parameters,
    })
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

/// The parameters of a function are an object; anything else is a mistake that the model would repeat.
fn check_schema(schema: &Map<String, Value>, function: &Fields<'_>) -> Result<(), ApiError> {
    let kind = schema.get("type").filter(|kind| !kind.is_null());
    let object = kind.is_none_or(|kind| kind == "object");
    let properties = schema.get("properties").is_none_or(|p| p.is_object() || p.is_null());
    if object && properties {
        Ok(())
    } else {
        Err(function.unexpected("parameters", "a JSON schema of type \"object\""))
    }
}

/// Some clients send `"required": null` for none.
fn drop_nulls(schema: &mut Map<String, Value>) {
    schema.retain(|_, value| !value.is_null());
}

pub(super) fn read_choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let expected = "\"none\", \"auto\", \"required\" or a function by name";
    let choice = match fields.get("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => return Err(fields.unexpected("tool_choice", expected)),
        },
        Some(Value::Object(_)) => named(fields, expected)?,
        Some(_) => return Err(fields.unexpected("tool_choice", expected)),
    };
    match &choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(fields.error("tool_choice", "a call is required but no tools are declared"))
        }
        ToolChoice::Named(name) if tools.iter().all(|tool| tool.name != *name) => {
            Err(fields.error("tool_choice", &format!("the function {name:?} is not declared in tools")))
        }
        _ => Ok(choice),
    }
}

fn named(fields: &Fields<'_>, expected: &str) -> Result<ToolChoice, ApiError> {
    let refuse = || fields.unexpected("tool_choice", expected);
    let choice = fields.object("tool_choice")?.ok_or_else(refuse)?;
    if choice.string("type")? != Some("function") {
        return Err(refuse());
    }
    let function = choice.object("function")?.ok_or_else(refuse)?;
    Ok(ToolChoice::Named(function.string("name")?.ok_or_else(refuse)?.to_owned()))
}
