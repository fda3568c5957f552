//! The body of `POST /v1/chat/completions`.

use serde_json::Value;

use super::fields::Fields;
use super::options::{model, refuse_unsupported};
use super::{ApiError, Options, messages, tools};
use crate::chat::{Conversation, Effort};

#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    pub model: String,
    pub conversation: Conversation,
    pub options: Options,
    /// The answer ends with its first tool call.
    pub single_call: bool,
}

impl ChatRequest {
    /// Checks a request. `thinking`: what a request gets that does not say.
    ///
    /// # Errors
    /// The first field that is wrong, with its path.
    pub fn read(body: &Value, thinking: bool) -> Result<Self, ApiError> {
        let fields = Fields::top(body)?;
        let model = model(&fields)?.to_owned();
        let messages = messages::read(&fields)?;
        refuse_unsupported(&fields)?;
        let tools = tools::read(&fields)?;
        let tool_choice = tools::read_choice(&fields, &tools)?;
        let mut options = Options::read(&fields)?;
        options.top_logprobs = logprobs(&fields)?;
        let (thinking, effort) = reasoning(&fields, thinking)?;
        let single_call = fields.bool("parallel_tool_calls")? == Some(false);
        let conversation = Conversation { messages, tools, tool_choice, thinking, effort };
        Ok(Self { model, conversation, options, single_call })
    }
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    match fields.integer("top_logprobs", 0..=20)? {
        Some(_) if !wanted => Err(fields.error("top_logprobs", "only allowed with \"logprobs\": true")),
        top => Ok(wanted.then_some(top.map_or(0, |top| u32::try_from(top).unwrap_or(0)))),
    }
}

/// Three spellings of the same switch; an explicit one wins over the effort.
fn reasoning(fields: &Fields<'_>, default: bool) -> Result<(bool, Effort), ApiError> {
    let effort = fields.string("reasoning_effort")?;
    let (by_effort, level) = match effort {
        None => (None, Effort::Default),
        Some("none") => (Some(false), Effort::Default),
        Some("minimal" | "low" | "medium" | "high") => (Some(true), Effort::Default),
        Some("xhigh" | "max") => (Some(true), Effort::Max),
        Some(_) => {
            let expected = "none, minimal, low, medium, high, xhigh or max";
            return Err(fields.unexpected("reasoning_effort", expected));
        }
    };
    let explicit = match fields.object("thinking")? {
        None => None,
        Some(thinking) => match thinking.string("type")? {
            Some("enabled") => Some(true),
            Some("disabled") => Some(false),
            _ => return Err(thinking.unexpected("type", "\"enabled\" or \"disabled\"")),
        },
    };
    let template = template_switch(fields)?;
    Ok((explicit.or(template).or(by_effort).unwrap_or(default), level))
}

fn template_switch(fields: &Fields<'_>) -> Result<Option<bool>, ApiError> {
    let Some(kwargs) = fields.object("chat_template_kwargs")? else { return Ok(None) };
    let known = ["thinking", "enable_thinking"];
    if let Some(unknown) = kwargs.names().find(|name| !known.contains(&name.as_str())) {
        return Err(ApiError::unsupported(kwargs.path(unknown)));
    }
    Ok(kwargs.bool(known[0])?.or(kwargs.bool(known[1])?))
}
