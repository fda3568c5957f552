//! Answers of an engine in this process, by the server's own encoder and parser.

use std::sync::Arc;

use flashlane::engine::{Event, Generate, GenerateRequest, SamplingParams};
use serde_json::Value;

use super::answer::Answer;
use crate::chat::{ChatTokenizer, Control, ToolChoice, render};
use crate::dsml::{Config, ToolSchemas};
use crate::engine::Loaded;
use crate::generation::{ChatDecoder, Decoder, Finish, Step};
use crate::openai::ChatRequest;

/// An engine that is asked as the chat route would ask it; always greedy.
#[derive(Clone, Debug)]
pub struct Local {
    engine: Arc<dyn Generate>,
    tokenizer: Arc<ChatTokenizer>,
}

impl Local {
    pub fn new(loaded: &Loaded) -> Self {
        Self { engine: Arc::clone(&loaded.engine), tokenizer: Arc::clone(&loaded.tokenizer) }
    }

    /// `number` becomes the seed of the sampling, which names the request to the engine's row log.
    ///
    /// # Errors
    /// A sentence: the request is refused, or failed; `answer` has what came before.
    pub(super) async fn ask(&self, body: &Value, number: u64, answer: &mut Answer) -> Result<(), String> {
        let request = ChatRequest::read(body, false).map_err(|error| format!("{error:?}"))?;
        let prompt = render(&request.conversation);
        let limit = self.engine.max_model_len();
        let ids =
            self.tokenizer.encode(prompt.pieces.as_slice(), limit).map_err(|error| error.to_string())?;
        let tools = match request.conversation.tool_choice {
            ToolChoice::None => ToolSchemas::default(),
            _ => {
                ToolSchemas::new(request.conversation.tools.iter().map(|t| (t.name.as_str(), &t.parameters)))
            }
        };
        let config = Config { start: prompt.opening, tools };
        let mut decoder = ChatDecoder::new(Arc::clone(&self.tokenizer), config, Vec::new());
        answer.prompt = ids.len();
        let mut handle = self
            .engine
            .submit(GenerateRequest {
                max_tokens: request
                    .options
                    .max_tokens
                    .unwrap_or(limit)
                    .min(limit.saturating_sub(ids.len()).max(1)),
                prompt: ids,
                stop_token_ids: vec![self.tokenizer.id(Control::Eos)],
                sampling: SamplingParams { seed: number, ..SamplingParams::default() },
            })
            .map_err(|error| error.to_string())?;
        while let Some(event) = handle.events.recv().await {
            let step = match event {
                Event::Token(token) => {
                    answer.ids.push(token.id);
                    decoder.token(&token)
                }
                Event::Finished { reason, .. } => decoder.end(reason),
                Event::Failed(error) => return Err(error.to_string()),
            };
            let Step { deltas, finish } = step;
            deltas.into_iter().for_each(|delta| answer.push(delta));
            if let Some(finish) = finish {
                answer.finish = Finish::as_str(finish).to_owned();
                return Ok(());
            }
        }
        Err("the engine ended the stream without an end".to_owned())
    }
}
