//! What both generating routes share: sampling, limits, stops, streaming.

use flashlane::engine::SamplingParams;
use serde_json::Value;

use super::ApiError;
use super::fields::{Fields, integer};

/// Sequences that one request may ask for.
const MAX_CHOICES: i64 = 16;
const MAX_STOPS: usize = 16;
/// Longer stop strings only serve to hold output back.
const MAX_STOP_BYTES: usize = 1024;

/// Checked generation options; `None` leaves the choice to the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    pub max_tokens: Option<usize>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: u32,
    pub min_p: f32,
    pub seed: Option<u64>,
    pub n: usize,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    pub top_logprobs: Option<u32>,
    pub stream: Option<StreamOptions>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// One last chunk with the usage of the whole request.
    pub include_usage: bool,
    /// The usage so far on every chunk.
    pub continuous_usage: bool,
}

/// Fields that change the answer, and the one value with which they change nothing.
const UNSUPPORTED: [(&str, Neutral); 42] = [
    ("audio", Neutral::Absent),
    ("bad_words", Neutral::Empty),
    ("best_of", Neutral::Number(1.0)),
    ("chat_template", Neutral::Absent),
    ("continue_final_message", Neutral::False),
    ("dry_multiplier", Neutral::Number(0.0)),
    ("ebnf", Neutral::Absent),
    ("echo", Neutral::False),
    ("frequency_penalty", Neutral::Number(0.0)),
    ("function_call", Neutral::Absent),
    ("functions", Neutral::Absent),
    ("grammar", Neutral::Absent),
    ("guided_choice", Neutral::Absent),
    ("guided_grammar", Neutral::Absent),
    ("guided_json", Neutral::Absent),
    ("guided_regex", Neutral::Absent),
    ("include_stop_str_in_output", Neutral::False),
    ("json_schema", Neutral::Absent),
    ("length_penalty", Neutral::Number(1.0)),
    ("logit_bias", Neutral::Empty),
    ("logits_processors", Neutral::Empty),
    ("lora", Neutral::Empty),
    ("min_tokens", Neutral::Number(0.0)),
    ("mirostat", Neutral::Number(0.0)),
    ("presence_penalty", Neutral::Number(0.0)),
    ("prompt_embeds", Neutral::Absent),
    ("prompt_logprobs", Neutral::Absent),
    ("regex", Neutral::Absent),
    ("repeat_penalty", Neutral::Number(1.0)),
    ("repetition_penalty", Neutral::Number(1.0)),
    ("return_token_ids", Neutral::False),
    ("return_tokens_as_token_ids", Neutral::False),
    ("stop_regex", Neutral::Absent),
    ("structured_outputs", Neutral::Absent),
    ("suffix", Neutral::Absent),
    ("truncate_prompt_tokens", Neutral::Absent),
    ("typical_p", Neutral::Number(1.0)),
    ("use_beam_search", Neutral::False),
    ("verbosity", Neutral::Text("medium")),
    ("web_search_options", Neutral::Absent),
    ("xtc_probability", Neutral::Number(0.0)),
    ("allowed_token_ids", Neutral::Absent),
];

#[derive(Clone, Copy, Debug)]
enum Neutral {
    Absent,
    Empty,
    False,
    Number(f64),
    Text(&'static str),
}

impl Neutral {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::Absent => false,
            Self::Empty => {
                value.as_object().is_some_and(serde_json::Map::is_empty)
                    || value.as_array().is_some_and(Vec::is_empty)
            }
            Self::False => value == &Value::Bool(false),
            Self::Number(neutral) => value.as_f64() == Some(neutral),
            Self::Text(neutral) => value == neutral,
        }
    }
}

/// Refuses what is not implemented, by name.
pub(super) fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    for name in fields.names() {
        let known = UNSUPPORTED.iter().find(|(known, _)| known == name);
        if let (Some((_, neutral)), Some(value)) = (known, fields.get(name))
            && !neutral.holds(value)
        {
            return Err(ApiError::unsupported(name));
        }
    }
    if let Some(modalities) = fields.array("modalities")?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(ApiError::unsupported("modalities"));
    }
    response_format(fields)
}

/// Nothing constrains the output here, so any format but text would be a promise not kept.
fn response_format(fields: &Fields<'_>) -> Result<(), ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(()) };
    match format.string("type")? {
        Some("text") => Ok(()),
        Some("json_object" | "json_schema") => Err(ApiError::unsupported("response_format")),
        _ => Err(format.unexpected("type", "\"text\"")),
    }
}

pub(super) fn model<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    fields.string("model")?.ok_or_else(|| fields.error("model", "required: name a model of GET /v1/models"))
}

impl Options {
    #[expect(clippy::cast_possible_truncation, reason = "sampling works in f32")]
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            max_tokens: max_tokens(fields)?,
            temperature: fields.number("temperature", 0.0, 2.0, false)?.map(|t| t as f32),
            top_p: fields.number("top_p", 0.0, 1.0, true)?.map(|p| p as f32),
            top_k: fields.integer("top_k", -1..=1_000_000)?.map_or(0, |k| u32::try_from(k).unwrap_or(0)),
            min_p: fields.number("min_p", 0.0, 1.0, false)?.map_or(0.0, |p| p as f32),
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
            n: fields.integer("n", 1..=MAX_CHOICES)?.map_or(Ok(1), usize::try_from).unwrap_or(1),
            stop: stops(fields)?,
            stop_token_ids: stop_token_ids(fields)?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            top_logprobs: None,
            stream: stream(fields)?,
        })
    }

    /// The engine's parameters for choice `index`. Without a seed each request draws its own.
    pub fn sampling(&self, defaults: &SamplingParams, seed: u64, index: usize) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed.unwrap_or(seed).wrapping_add(index as u64),
            top_logprobs: self.top_logprobs,
        }
    }
}

fn max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    const LIMIT: i64 = u32::MAX as i64;
    let old = fields.integer("max_tokens", 1..=LIMIT)?;
    let new = fields.integer("max_completion_tokens", 1..=LIMIT)?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(fields.error("max_completion_tokens", "differs from max_tokens; send one of them"));
    }
    Ok(new.or(old).and_then(|n| usize::try_from(n).ok()))
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stops = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(many)) => {
            let strings: Option<Vec<String>> = many.iter().map(|s| s.as_str().map(str::to_owned)).collect();
            strings.ok_or_else(|| fields.unexpected("stop", "a string or an array of strings"))?
        }
        Some(_) => return Err(fields.unexpected("stop", "a string or an array of strings")),
    };
    if stops.len() > MAX_STOPS {
        return Err(fields.error("stop", &format!("at most {MAX_STOPS} stop strings, found {}", stops.len())));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return Err(fields.error("stop", &format!("a stop string has 1 to {MAX_STOP_BYTES} bytes")));
    }
    Ok(stops)
}

fn stop_token_ids(fields: &Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let ids = fields.array("stop_token_ids")?.map_or(&[][..], Vec::as_slice);
    let ids: Option<Vec<u32>> = ids.iter().map(|id| integer(id).and_then(|id| id.try_into().ok())).collect();
    ids.filter(|ids| ids.len() <= MAX_STOPS)
        .ok_or_else(|| fields.unexpected("stop_token_ids", &format!("at most {MAX_STOPS} token ids")))
}

fn stream(fields: &Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let Some(options) = fields.object("stream_options")? else {
        return Ok(stream.then(StreamOptions::default));
    };
    if !stream {
        return Err(fields.error("stream_options", "only allowed with \"stream\": true"));
    }
    Ok(Some(StreamOptions {
        include_usage: options.bool("include_usage")?.unwrap_or(false),
        continuous_usage: options.bool("continuous_usage_stats")?.unwrap_or(false),
    }))
}
