//! The two routes that generate: request in, engine requests out, answer back.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use flashlane::engine::{EngineError, GenerateRequest};

use super::app::now;
use super::drain::InFlight;
use super::{App, body, sse};
use crate::chat::{Control, EncodeError, render};
use crate::dsml::{Config, ToolSchemas};
use crate::generation::{ChatDecoder, Decoder, Generation, TextDecoder};
use crate::ids;
use crate::openai::{
    ApiError, ChatFormat, ChatRequest, CompletionFormat, CompletionRequest, Format, Head, Options,
    PromptInput, Whole,
};

/// A running answer. Dropping it aborts the engine's work.
pub(super) struct Answer {
    pub app: Arc<App>,
    pub generation: Generation,
    pub format: Box<dyn Format>,
    _running: InFlight,
}

impl Drop for Answer {
    fn drop(&mut self) {
        for counters in self.generation.counters() {
            self.app.metrics.parsed(counters);
        }
    }
}

type Submission = Vec<(GenerateRequest, Box<dyn Decoder>)>;

pub(super) async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = body::json(&app, request).await?;
    app.check_serving()?;
    let request = ChatRequest::read(&body, app.defaults.thinking)?;
    app.check_model(&request.model)?;
    let prompt = render(&request.conversation);
    let opening = prompt.opening;
    let encode = move |app: &App| app.tokenizer.encode(prompt.pieces.as_slice(), app.engine.max_model_len());
    let ids = encode_aside(&app, encode).await?;
    let tools = &request.conversation.tools;
    let tools = match request.conversation.tool_choice {
        crate::chat::ToolChoice::None => ToolSchemas::default(),
        _ => ToolSchemas::new(tools.iter().map(|tool| (tool.name.as_str(), &tool.parameters))),
    };
    let single_call =
        request.single_call || matches!(request.conversation.tool_choice, crate::chat::ToolChoice::Named(_));
    let decoder = || -> Box<dyn Decoder> {
        let config = Config { start: opening.clone(), tools: tools.clone() };
        Box::new(
            ChatDecoder::new(Arc::clone(&app.tokenizer), config, request.options.stop.clone())
                .ignore_eos(request.options.ignore_eos)
                .single_call(single_call),
        )
    };
    let prompt_tokens = ids.len();
    let requests = submission(&app, &[ids], &request.options, decoder)?;
    let logprobs = request.options.top_logprobs.is_some();
    let format = Box::new(ChatFormat { head: head(&app, "chatcmpl"), logprobs });
    answer(app, requests, prompt_tokens, format, &request.options).await
}

pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    complete(app, request).await.map_err(|error| match error.code {
        Some("context_length_exceeded") => ApiError { param: Some("prompt".into()), ..error },
        _ => error,
    })
}

async fn complete(app: Arc<App>, request: Request) -> Result<Response, ApiError> {
    let body = body::json(&app, request).await?;
    app.check_serving()?;
    let request = CompletionRequest::read(&body)?;
    app.check_model(&request.model)?;
    let prompts = request.prompts;
    let encode = move |app: &App| prompts.iter().map(|prompt| encode_prompt(app, prompt)).collect();
    let prompts: Vec<Vec<u32>> = encode_aside(&app, encode).await?;
    let vocabulary = app.tokenizer.vocab_size();
    if let Some(id) = prompts.iter().flatten().find(|id| **id as usize >= vocabulary) {
        let message = format!("'prompt': expected token ids below {vocabulary}, found {id}");
        return Err(ApiError::field("prompt", message));
    }
    let decoder = || -> Box<dyn Decoder> {
        Box::new(TextDecoder::new(Arc::clone(&app.tokenizer), request.options.stop.clone()))
    };
    let prompt_tokens = prompts.iter().map(Vec::len).sum();
    let requests = submission(&app, &prompts, &request.options, decoder)?;
    let logprobs = request.options.top_logprobs.is_some();
    let offsets = vec![0; requests.len()];
    let format = Box::new(CompletionFormat { head: head(&app, "cmpl"), logprobs, offsets });
    answer(app, requests, prompt_tokens, format, &request.options).await
}

fn encode_prompt(app: &App, prompt: &PromptInput) -> Result<Vec<u32>, EncodeError> {
    match prompt {
        PromptInput::Text(text) => app.tokenizer.encode_raw(text, app.engine.max_model_len()),
        PromptInput::Tokens(ids) => Ok(ids.clone()),
    }
}

/// Encodes where it does not hold up other requests.
async fn encode_aside<T: Send + 'static>(
    app: &Arc<App>,
    encode: impl FnOnce(&App) -> Result<T, EncodeError> + Send + 'static,
) -> Result<T, ApiError> {
    let shared = Arc::clone(app);
    let encoded = tokio::task::spawn_blocking(move || encode(&shared)).await;
    let encoded = encoded.map_err(|_| ApiError::internal("the tokenizer failed on this prompt"))?;
    encoded.map_err(|error| match error {
        EncodeError::TooLong { at_least, limit } => ApiError::context_length(limit, at_least, 0),
        EncodeError::Text(message) => ApiError::invalid(message),
    })
}

/// One engine request per prompt and choice.
fn submission(
    app: &App,
    prompts: &[Vec<u32>],
    options: &Options,
    decoder: impl Fn() -> Box<dyn Decoder>,
) -> Result<Submission, ApiError> {
    let seed = ids::random();
    let mut stop_token_ids = options.stop_token_ids.clone();
    if !options.ignore_eos {
        stop_token_ids.push(app.tokenizer.id(Control::Eos));
    }
    let mut submission = Submission::new();
    for prompt in prompts {
        let max_tokens = max_tokens(prompt.len(), options.max_tokens, app.engine.max_model_len())?;
        for choice in 0..options.n {
            let request = GenerateRequest {
                prompt: prompt.clone(),
                max_tokens,
                stop_token_ids: stop_token_ids.clone(),
                sampling: options.sampling(&app.defaults.sampling, seed, choice),
            };
            submission.push((request, decoder()));
        }
    }
    Ok(submission)
}

/// What was asked for if it fits, or all that is left.
fn max_tokens(prompt: usize, wanted: Option<usize>, limit: usize) -> Result<usize, ApiError> {
    let left = limit.saturating_sub(prompt);
    match wanted.unwrap_or(left.max(1)) {
        wanted if wanted <= left => Ok(wanted),
        wanted => Err(ApiError::context_length(limit, prompt, wanted)),
    }
}

fn head(app: &App, prefix: &str) -> Head {
    Head { id: ids::response(prefix), created: now(), model: app.model.clone() }
}

async fn answer(
    app: Arc<App>,
    requests: Submission,
    prompt_tokens: usize,
    format: Box<dyn Format>,
    options: &Options,
) -> Result<Response, ApiError> {
    let running = app.drain.enter();
    let choices = requests.len();
    let slots = app.engine.stats().total_slots;
    let generation = Generation::submit(&*app.engine, requests, prompt_tokens)
        .map_err(|error| refusal(error, choices, slots))?;
    let answer = Answer { app, generation, format, _running: running };
    match options.stream {
        Some(stream) => Ok(sse::respond(answer, choices, stream)),
        None => whole(answer, choices).await,
    }
}

/// A full queue will have room again, but never for more sequences than run and wait: those must not be told to come back.
fn refusal(error: EngineError, sequences: usize, slots: usize) -> ApiError {
    match error {
        EngineError::QueueFull { limit, .. } if sequences > slots + limit => ApiError::field(
            "n",
            format!("'n': this request asks for {sequences} sequences; this server takes {}", slots + limit),
        ),
        other => other.into(),
    }
}

async fn whole(mut answer: Answer, choices: usize) -> Result<Response, ApiError> {
    let app = Arc::clone(&answer.app);
    let mut wholes: Vec<Whole> = std::iter::repeat_with(Whole::default).take(choices).collect();
    loop {
        let progress = tokio::select! {
            progress = answer.generation.next() => progress,
            () = app.drain.cut_off() => return Err(ApiError::unavailable("the server is shutting down")),
        };
        let Some(progress) = progress else { break };
        let progress = progress?;
        wholes[progress.choice].push(progress.deltas, progress.finish);
    }
    let usage = answer.generation.usage();
    Ok(Json(answer.format.whole(wholes, usage)).into_response())
}
