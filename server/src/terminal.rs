//! A conversation in the terminal, with the encoder and parser of the server.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use flashlane::engine::{EngineError, GenerateRequest, SamplingParams};

use crate::chat::{Assistant, Control, Conversation, Message, render};
use crate::cli::ChatArgs;
use crate::dsml::{Config, ToolSchemas};
use crate::engine::Loaded;
use crate::generation::{ChatDecoder, Delta, Generation};

/// Shown at the start: things to ask that the built-in model knows.
const SUGGESTIONS: [&str; 3] = [
    "What are you?",
    "How do I call a tool?",
    "The code of red fox is 7Q2Z9K. The code of blue owl is M4K1. What is the code of red fox?",
];

const HELP: &str = "/reset starts over, /quit or Ctrl-D leaves.";

/// The model and the conversation so far.
#[derive(Debug)]
pub struct Session {
    loaded: Loaded,
    system: Vec<Message>,
    messages: Vec<Message>,
    sampling: SamplingParams,
    max_tokens: usize,
    built_in: bool,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("{0}; /reset starts over")]
    Prompt(#[from] crate::chat::EncodeError),
    #[error("the conversation has filled the context; /reset starts over")]
    Full,
    #[error(transparent)]
    Terminal(#[from] io::Error),
}

impl Session {
    pub fn new(loaded: Loaded, args: &ChatArgs) -> Self {
        let system: Vec<Message> = args.system.iter().cloned().map(Message::System).collect();
        let sampling = SamplingParams {
            temperature: args.temperature,
            seed: crate::ids::random(),
            ..loaded.defaults.sampling
        };
        Self {
            messages: system.clone(),
            system,
            loaded,
            sampling,
            max_tokens: args.max_tokens,
            built_in: args.model.model.is_none(),
        }
    }

    fn greet(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}. {HELP}", self.loaded.name)?;
        if self.built_in {
            writeln!(out, "The built-in model knows little; try:")?;
            SUGGESTIONS.iter().try_for_each(|suggestion| writeln!(out, "  {suggestion}"))?;
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.messages.clone_from(&self.system);
    }

    fn start(&self) -> Result<Generation, NoAnswer> {
        let Loaded { engine, tokenizer, defaults, .. } = &self.loaded;
        let conversation = Conversation {
            messages: self.messages.clone(),
            thinking: defaults.thinking,
            ..Conversation::default()
        };
        let prompt = render(&conversation);
        let limit = engine.max_model_len();
        let ids = tokenizer.encode(prompt.pieces.as_slice(), limit)?;
        let length = ids.len();
        let max_tokens = self.max_tokens.min(limit - length);
        if max_tokens == 0 {
            return Err(NoAnswer::Full);
        }
        let request = GenerateRequest {
            prompt: ids,
            max_tokens,
            stop_token_ids: vec![tokenizer.id(Control::Eos)],
            sampling: self.sampling.clone(),
        };
        let parser = Config { start: prompt.opening, tools: ToolSchemas::default() };
        let decoder = ChatDecoder::new(Arc::clone(tokenizer), parser, Vec::new());
        Ok(Generation::submit(&**engine, vec![(request, Box::new(decoder))], length)?)
    }

    /// Prints the answer as it comes and returns it.
    async fn answer(&self, out: &mut impl Write) -> Result<Assistant, NoAnswer> {
        let mut generation = self.start()?;
        let mut answer = Assistant::default();
        while let Some(progress) = generation.next().await {
            for delta in progress?.deltas {
                match delta {
                    Delta::Reasoning(text) => {
                        write!(out, "{text}")?;
                        answer.reasoning += &text;
                    }
                    Delta::Text { text, .. } => {
                        if answer.content.is_empty() && !answer.reasoning.is_empty() {
                            writeln!(out, "\n---")?;
                        }
                        write!(out, "{text}")?;
                        answer.content += &text;
                    }
                    Delta::CallStart { .. } | Delta::Arguments { .. } | Delta::CallEnd { .. } => {}
                }
            }
            out.flush()?;
        }
        writeln!(out)?;
        Ok(answer)
    }
}

/// Reads lines and answers them until the input ends.
///
/// # Errors
/// Input or output failed.
pub fn converse(
    runtime: &tokio::runtime::Runtime,
    mut session: Session,
    input: &mut impl BufRead,
    out: &mut impl Write,
) -> io::Result<()> {
    session.greet(out)?;
    let mut line = String::new();
    loop {
        write!(out, "> ")?;
        out.flush()?;
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return writeln!(out);
        }
        match line.trim() {
            "" => {}
            "/quit" => return Ok(()),
            "/reset" => session.reset(),
            command if command.starts_with('/') => writeln!(out, "{HELP}")?,
            text => {
                session.messages.push(Message::User(text.to_owned()));
                match runtime.block_on(session.answer(out)) {
                    Ok(answer) => session.messages.push(Message::Assistant(answer)),
                    Err(NoAnswer::Terminal(error)) => return Err(error),
                    Err(error) => {
                        session.messages.pop();
                        writeln!(out, "{error}")?;
                    }
                }
            }
        }
    }
}
