//! A request while it runs: one engine handle and one decoder per choice.

use std::future::poll_fn;
use std::task::{Context, Poll};

use flashlane::engine::{EngineError, Event, Generate, GenerateRequest, RequestHandle};

use super::decoder::{Decoder, Delta, Finish, Step};
use crate::dsml::Counters;

/// Token counts as the client is told them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: usize,
    pub cached: usize,
    pub completion: usize,
    pub reasoning: usize,
}

/// News of one choice.
#[derive(Debug)]
pub struct Progress {
    pub choice: usize,
    pub deltas: Vec<Delta>,
    pub finish: Option<Finish>,
}

#[derive(Debug)]
struct Choice {
    /// Dropping it aborts the sequence; gone once the choice is finished.
    handle: Option<RequestHandle>,
    decoder: Box<dyn Decoder>,
    completion: usize,
}

/// All choices of a request.
#[derive(Debug)]
pub struct Generation {
    choices: Vec<Choice>,
    prompt: usize,
    cached: usize,
    /// Choices take turns, so that one with many events ready does not starve the others.
    turn: usize,
}

impl Generation {
    /// Submits one sequence per decoder. `prompt` is the number of prompt tokens that the client pays for.
    ///
    /// # Errors
    /// The engine's refusal; then nothing runs.
    pub fn submit(
        engine: &dyn Generate,
        requests: Vec<(GenerateRequest, Box<dyn Decoder>)>,
        prompt: usize,
    ) -> Result<Self, EngineError> {
        let choices = requests
            .into_iter()
            .map(|(request, decoder)| {
                let handle = Some(engine.submit(request)?);
                Ok(Choice { handle, decoder, completion: 0 })
            })
            .collect::<Result<_, EngineError>>()?;
        Ok(Self { choices, prompt, cached: 0, turn: 0 })
    }

    /// The next news, or `None` when every choice is finished.
    ///
    /// # Errors
    /// The engine failed one of the choices; the request as a whole has failed then.
    pub async fn next(&mut self) -> Option<Result<Progress, EngineError>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt: self.prompt,
            cached: self.cached,
            completion: self.choices.iter().map(|choice| choice.completion).sum(),
            reasoning: self.choices.iter().map(|choice| choice.decoder.reasoning_tokens()).sum(),
        }
    }

    /// Parser counters of all choices.
    pub fn counters(&self) -> impl Iterator<Item = Counters> {
        self.choices.iter().map(|choice| choice.decoder.counters())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Progress, EngineError>>> {
        let count = self.choices.len();
        let first = self.turn;
        let mut running = false;
        for offset in 0..count {
            let index = (first + offset) % count;
            // Tokens that bring nothing to say yet are passed over.
            while let Some(handle) = &mut self.choices[index].handle {
                let Poll::Ready(event) = handle.events.poll_recv(cx) else {
                    running = true;
                    break;
                };
                self.turn = index + 1;
                match self.event(index, event) {
                    Ok(Step { deltas, finish: None }) if deltas.is_empty() => {}
                    Ok(Step { deltas, finish }) => {
                        return Poll::Ready(Some(Ok(Progress { choice: index, deltas, finish })));
                    }
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            }
        }
        if running { Poll::Pending } else { Poll::Ready(None) }
    }

    fn event(&mut self, index: usize, event: Option<Event>) -> Result<Step, EngineError> {
        let choice = &mut self.choices[index];
        let step = match event {
            Some(Event::Token(token)) => {
                choice.completion += 1;
                choice.decoder.token(&token)
            }
            Some(Event::Finished { reason, usage }) => {
                self.cached += usage.cached_tokens;
                choice.decoder.end(reason)
            }
            Some(Event::Failed(error)) => return Err(self.abort(error)),
            None => return Err(self.abort(EngineError::Dead("its event queue closed without an end".into()))),
        };
        if step.finish.is_some() {
            choice.handle = None;
        }
        Ok(step)
    }

    fn abort(&mut self, error: EngineError) -> EngineError {
        for choice in &mut self.choices {
            choice.handle = None;
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use flashlane::engine::{Event, FinishReason, RequestHandle, Token};
    use tokio::sync::mpsc;

    use super::{Choice, Decoder, Delta, Finish, Generation, Step};

    /// Says nothing for token 0, and the number of any other.
    #[derive(Debug)]
    struct Numbers;

    impl Decoder for Numbers {
        fn token(&mut self, token: &Token) -> Step {
            let text = |id: u32| Delta::Text { text: id.to_string(), logprobs: Vec::new() };
            Step { deltas: (token.id > 0).then(|| text(token.id)).into_iter().collect(), finish: None }
        }

        fn end(&mut self, reason: FinishReason) -> Step {
            Step { deltas: Vec::new(), finish: Some(Finish::from(reason)) }
        }
    }

    #[test]
    fn a_silent_token_of_one_choice_does_not_hide_the_news_of_another() {
        let (senders, choices): (Vec<_>, Vec<_>) = (0..2)
            .map(|id| {
                let (sender, events) = mpsc::channel(4);
                let handle = Some(RequestHandle { id, events });
                (sender, Choice { handle, decoder: Box::new(Numbers), completion: 0 })
            })
            .unzip();
        let mut generation = Generation { choices, prompt: 1, cached: 0, turn: 0 };
        for (choice, id) in [(0, 0), (1, 7)] {
            senders[choice].try_send(Event::Token(Token { id, logprobs: None })).unwrap();
        }
        let Poll::Ready(Some(Ok(progress))) = generation.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("choice 1 has news")
        };
        assert_eq!(progress.choice, 1);
    }
}
