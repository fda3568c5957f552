//! The body of `POST /v1/completions`.

use serde_json::Value;

use super::fields::{Fields, integer};
use super::options::{model, refuse_unsupported};
use super::{ApiError, Options};

/// Prompts of one request.
const MAX_PROMPTS: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptInput {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    pub model: String,
    pub prompts: Vec<PromptInput>,
    pub options: Options,
}

impl CompletionRequest {
    /// Checks a request.
    ///
    /// # Errors
    /// The first field that is wrong, with its path.
    pub fn read(body: &Value) -> Result<Self, ApiError> {
        let fields = Fields::top(body)?;
        let model = model(&fields)?.to_owned();
        refuse_unsupported(&fields)?;
        let prompts = prompts(&fields)?;
        let mut options = Options::read(&fields)?;
        // The old API's own default; without it a base prompt runs to the end of the context.
        options.max_tokens = options.max_tokens.or(Some(16));
        options.top_logprobs = fields.integer("logprobs", 0..=20)?.and_then(|n| u32::try_from(n).ok());
        Ok(Self { model, prompts, options })
    }
}

fn prompts(fields: &Fields<'_>) -> Result<Vec<PromptInput>, ApiError> {
    let expected = "a string, an array of token ids, or an array of either";
    let refuse = || fields.unexpected("prompt", expected);
    let prompts = match fields.get("prompt") {
        Some(Value::String(text)) => vec![PromptInput::Text(text.clone())],
        Some(Value::Array(items)) if items.first().is_some_and(Value::is_number) => {
            vec![PromptInput::Tokens(tokens(items).ok_or_else(refuse)?)]
        }
        Some(Value::Array(items)) if !items.is_empty() => {
            items.iter().map(prompt).collect::<Option<_>>().ok_or_else(refuse)?
        }
        _ => return Err(refuse()),
    };
    if prompts.len() > MAX_PROMPTS {
        return Err(
            fields.error("prompt", &format!("at most {MAX_PROMPTS} prompts, found {}", prompts.len()))
        );
    }
    Ok(prompts)
}

fn prompt(value: &Value) -> Option<PromptInput> {
    match value {
        Value::String(text) => Some(PromptInput::Text(text.clone())),
        Value::Array(items) if !items.is_empty() => tokens(items).map(PromptInput::Tokens),
        _ => None,
    }
}

fn tokens(items: &[Value]) -> Option<Vec<u32>> {
    items.iter().map(|item| integer(item).and_then(|id| u32::try_from(id).ok())).collect()
}
