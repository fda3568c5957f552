//! An engine that plays a script: tokens, faults, silence.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flashlane::engine::{
    EngineError, Event, FinishReason, Generate, GenerateRequest, Logprobs, RequestHandle, Stats, Token, Usage,
};
use tokio::sync::{Semaphore, mpsc};

use super::ids;

#[derive(Clone, Debug)]
pub enum Act {
    /// Tokens in the short notation.
    Say(&'static str),
    Token(u32),
    /// This token until the request is dropped.
    Forever(u32),
    /// Waits for a permit of the gate.
    Gate(Arc<Semaphore>),
    /// Waits until the request is dropped.
    Hold,
    Fail(EngineError),
    /// The engine thread vanishes.
    Vanish,
}

#[derive(Debug)]
pub struct Scripted {
    script: Vec<Act>,
    refusal: Option<EngineError>,
    max_model_len: usize,
    requests: Mutex<Vec<GenerateRequest>>,
    next_id: AtomicU64,
    draining: Mutex<bool>,
    dead: Mutex<Option<String>>,
    /// Ids of requests whose handle was dropped before their end.
    aborted: mpsc::UnboundedSender<u64>,
    pub aborts: tokio::sync::Mutex<mpsc::UnboundedReceiver<u64>>,
}

impl Scripted {
    pub fn new(script: Vec<Act>) -> Self {
        let (aborted, aborts) = mpsc::unbounded_channel();
        Self {
            script,
            refusal: None,
            max_model_len: 4096,
            requests: Mutex::default(),
            next_id: AtomicU64::new(0),
            draining: Mutex::default(),
            dead: Mutex::default(),
            aborted,
            aborts: aborts.into(),
        }
    }

    pub fn saying(text: &'static str) -> Self {
        Self::new(vec![Act::Say(text)])
    }

    pub fn refusing(error: EngineError) -> Self {
        Self { refusal: Some(error), ..Self::new(Vec::new()) }
    }

    pub fn with_max_model_len(self, max_model_len: usize) -> Self {
        Self { max_model_len, ..self }
    }

    /// What was submitted so far.
    pub fn requests(&self) -> Vec<GenerateRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub fn die(&self, reason: &str) {
        *self.dead.lock().unwrap() = Some(reason.to_owned());
    }

    pub fn is_draining(&self) -> bool {
        *self.draining.lock().unwrap()
    }

    /// Waits for the next abort.
    pub async fn abort(&self) -> u64 {
        self.aborts.lock().await.recv().await.unwrap()
    }
}

struct Player {
    request: GenerateRequest,
    events: mpsc::Sender<Event>,
    generated: usize,
}

/// The request is over: by its own end, or because nobody listens.
enum Over {
    Ended,
    Aborted,
}

impl Player {
    async fn play(mut self, script: Vec<Act>) -> Over {
        for act in script {
            if let Err(over) = self.act(act).await {
                return over;
            }
        }
        // A script that says nothing more ends like a model that stops.
        self.finish(FinishReason::Stop).await
    }

    async fn act(&mut self, act: Act) -> Result<(), Over> {
        match act {
            Act::Say(text) => {
                for id in ids(text) {
                    self.token(id).await?;
                }
                Ok(())
            }
            Act::Token(id) => self.token(id).await,
            Act::Forever(id) => loop {
                self.send(token(id, &self.request)).await?;
            },
            Act::Gate(gate) => {
                tokio::select! {
                    permit = gate.acquire() => permit.unwrap().forget(),
                    () = self.events.closed() => return Err(Over::Aborted),
                }
                Ok(())
            }
            Act::Hold => {
                self.events.closed().await;
                Err(Over::Aborted)
            }
            Act::Fail(error) => {
                self.send(Event::Failed(error)).await?;
                Err(Over::Ended)
            }
            Act::Vanish => Err(Over::Ended),
        }
    }

    async fn token(&mut self, id: u32) -> Result<(), Over> {
        self.generated += 1;
        self.send(token(id, &self.request)).await?;
        if self.request.stop_token_ids.contains(&id) {
            return Err(self.finish(FinishReason::Stop).await);
        }
        if self.generated == self.request.max_tokens {
            return Err(self.finish(FinishReason::Length).await);
        }
        Ok(())
    }

    async fn finish(&self, reason: FinishReason) -> Over {
        let usage = Usage {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: 0,
            completion_tokens: self.generated,
        };
        match self.send(Event::Finished { reason, usage }).await {
            Ok(()) => Over::Ended,
            Err(over) => over,
        }
    }

    async fn send(&self, event: Event) -> Result<(), Over> {
        self.events.send(event).await.map_err(|_| Over::Aborted)
    }
}

fn token(id: u32, request: &GenerateRequest) -> Event {
    let logprobs = request
        .sampling
        .top_logprobs
        .map(|top| Logprobs { chosen: -0.5, top: (0..top).map(|i| (id + i, -0.5)).collect() });
    Event::Token(Token { id, logprobs })
}

impl Generate for Scripted {
    fn submit(&self, request: GenerateRequest) -> Result<RequestHandle, EngineError> {
        if let Some(error) = &self.refusal {
            return Err(error.clone());
        }
        self.requests.lock().unwrap().push(request.clone());
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (events, receiver) = mpsc::channel(64);
        let player = Player { request, events, generated: 0 };
        let (script, aborted) = (self.script.clone(), self.aborted.clone());
        tokio::spawn(async move {
            if let Over::Aborted = player.play(script).await {
                aborted.send(id).unwrap();
            }
        });
        Ok(RequestHandle { id, events: receiver })
    }

    fn stats(&self) -> Stats {
        Stats { accepted: self.next_id.load(Ordering::Relaxed), ..Stats::default() }
    }

    fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    fn drain(&self) {
        *self.draining.lock().unwrap() = true;
    }

    fn dead(&self) -> Option<String> {
        self.dead.lock().unwrap().clone()
    }
}
