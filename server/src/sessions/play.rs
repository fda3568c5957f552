//! Plays sessions, several at once.

use std::time::Duration;

use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::Answer;
use super::judge::{Class, Faults, Judged, judge};
use super::local::Local;
use super::remote::Remote;
use super::script::Script;

/// Whom a session talks to.
#[derive(Clone, Debug)]
pub enum Model {
    Local(Local),
    Remote(Remote),
}

/// What every session is held to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of one answer.
    pub max_tokens: usize,
    /// For one answer.
    pub timeout: Duration,
    /// Sessions at once.
    pub concurrency: usize,
}

/// What became of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    pub index: u64,
    pub class: Class,
    pub faults: Faults,
    /// In order of the script's turns.
    pub answers: Vec<Answer>,
    /// Why the last one is not whole.
    pub error: Option<String>,
    /// It came too late.
    pub late: bool,
}

impl Session {
    /// Everything was said as the oracle says it.
    pub fn right(&self) -> bool {
        self.class == Class::Done && !self.faults.any()
    }

    /// The form was broken, whatever was said: a plain answer where a call was due is only wrong.
    pub fn frame_error(&self) -> bool {
        let endless = self.answers.iter().any(|answer| answer.finish == "length");
        matches!(self.class, Class::Leak | Class::Error) || self.faults.stray || endless
    }
}

/// The number of a request; turns are far fewer than 256.
pub fn number(session: u64, turn: usize) -> u64 {
    session << 8 | turn as u64
}

impl Model {
    async fn ask(&self, body: Value, number: u64, answer: &mut Answer) -> Result<(), String> {
        match self {
            Self::Local(local) => local.ask(&body, number, answer).await,
            Self::Remote(remote) => remote.ask(body, answer).await,
        }
    }
}

/// Plays one session to its end.
pub async fn play(model: &Model, script: &Script, limits: Limits) -> Session {
    let mut session = Session {
        index: script.index,
        class: Class::MaxRounds,
        faults: Faults::default(),
        answers: Vec::new(),
        error: None,
        late: false,
    };
    for (turn, expected) in script.turns.iter().enumerate() {
        let mut body = script.request(turn, &session.answers);
        for (field, value) in
            [("model", Value::from("")), ("max_tokens", limits.max_tokens.into()), ("temperature", 0.into())]
        {
            body.insert(field.into(), value);
        }
        let mut answer = Answer::default();
        let ask = model.ask(body.into(), number(script.index, turn), &mut answer);
        let asked = tokio::time::timeout(limits.timeout, ask).await;
        let late = asked.is_err();
        let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {} s", limits.timeout.as_secs())));
        if let Err(error) = asked {
            session.answers.push(answer);
            return Session { class: Class::Error, error: Some(error), late, ..session };
        }
        let Judged { class, faults } = judge(&answer, expected);
        session.faults |= faults;
        session.answers.push(answer);
        if let Some(class) = class {
            session.class = class;
            return session;
        }
    }
    session
}

/// Plays all sessions, and returns them in the scripts' order.
pub async fn play_all(
    model: &Model,
    scripts: &[Script],
    limits: Limits,
    mut tick: impl FnMut(&Session),
) -> Vec<Session> {
    let sessions = futures::stream::iter(scripts).map(|script| play(model, script, limits));
    let mut sessions = sessions.buffer_unordered(limits.concurrency.max(1));
    let mut all = Vec::with_capacity(scripts.len());
    while let Some(session) = sessions.next().await {
        tick(&session);
        all.push(session);
    }
    all.sort_by_key(|session| session.index);
    all
}
