//! Sessions in company against the same sessions alone, token by token, and against the oracle.

use flashlane::engine::RowLog;
use serde::Serialize;

use crate::sessions::{Answer, Script, Session, number};
use crate::tasks::conversation::SpanKind;

/// What a token was held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// The same session run alone: the model's own answer.
    Alone,
    /// The answer that the task asks for.
    Oracle,
}

/// The first token of an answer that is not what it was held against, and where it was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    pub against: Against,
    pub session: u64,
    /// The model's turn, from 0.
    pub round: usize,
    /// Its place in the answer.
    pub token: usize,
    /// Its place in the sequence, which is the length of the context that it was made from.
    pub length: usize,
    pub length_mod_4: usize,
    pub length_mod_128: usize,
    /// `None`: the answer is shorter.
    pub expected: Option<u32>,
    pub found: Option<u32>,
    /// What the token answers, if the task has an answer there.
    pub kind: Option<SpanKind>,
    /// Tokens back to what it looks up.
    pub distance: Option<usize>,
    /// Row of the batch, and rows of the step; `None` where no step ran.
    pub row: Option<usize>,
    pub bucket: Option<usize>,
    pub prefill: bool,
}

/// All tokens of all sessions, compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    pub compared_tokens: usize,
    /// Tokens that differ in the first answer of a session that differs; later ones answer other prompts and are not compared.
    pub differing_tokens: usize,
    pub differing_sessions: usize,
    /// The first token of each session that differs from the session alone, then of each that differs from the oracle.
    pub places: Vec<Place>,
}

/// Compares sessions in the same order.
pub fn compare(scripts: &[Script], company: &[Session], alone: &[Session], rows: &RowLog) -> Comparison {
    let mut comparison = Comparison::default();
    let mut oracle = Vec::new();
    for (script, (company, alone)) in scripts.iter().zip(company.iter().zip(alone)) {
        comparison.session(script, company, alone, rows);
        oracle.extend(against_oracle(script, company, rows));
    }
    comparison.places.extend(oracle);
    comparison
}

impl Comparison {
    fn session(&mut self, script: &Script, company: &Session, alone: &Session, rows: &RowLog) {
        let rounds = company.answers.len().max(alone.answers.len());
        for round in 0..rounds {
            let nothing = Answer::default();
            let here = company.answers.get(round).unwrap_or(&nothing);
            let there = alone.answers.get(round).unwrap_or(&nothing);
            // A slow machine says nothing about the tokens that did not come.
            let late = company.late && round + 1 == company.answers.len();
            let length = if late { here.ids.len() } else { here.ids.len().max(there.ids.len()) };
            let differing = (0..length).filter(|&i| here.ids.get(i) != there.ids.get(i));
            let differing: Vec<usize> = differing.collect();
            self.compared_tokens += length;
            if let Some(&token) = differing.first() {
                self.differing_tokens += differing.len();
                self.differing_sessions += 1;
                let prompt = here.prompt.max(there.prompt);
                self.places.push(place(
                    script,
                    round,
                    token,
                    prompt,
                    (here, &there.ids),
                    Against::Alone,
                    rows,
                ));
                return;
            }
            if late {
                return;
            }
        }
    }
}

/// The first token of the first answer that is not the oracle's; what follows it is judged by the classes alone.
fn against_oracle(script: &Script, session: &Session, rows: &RowLog) -> Option<Place> {
    let answers = session.answers.iter().zip(&script.turns).enumerate();
    let (round, (answer, expected)) = answers.into_iter().find(|(_, (a, e))| a.ids != e.ids)?;
    let length = answer.ids.len().max(expected.ids.len());
    let token = (0..length).find(|&i| answer.ids.get(i) != expected.ids.get(i))?;
    Some(place(script, round, token, answer.prompt, (answer, &expected.ids), Against::Oracle, rows))
}

fn place(
    script: &Script,
    round: usize,
    token: usize,
    prompt: usize,
    (found, expected): (&Answer, &[u32]),
    against: Against,
    rows: &RowLog,
) -> Place {
    let length = prompt + token;
    // The oracle's places hold only as long as the prompt is the oracle's.
    let as_scripted = script.turns.get(round).is_some_and(|turn| turn.start == prompt);
    let asked = script.place(length).filter(|_| as_scripted);
    let row = rows.find(number(script.index, round), length);
    Place {
        against,
        session: script.index,
        round,
        token,
        length,
        length_mod_4: length % 4,
        length_mod_128: length % 128,
        expected: expected.get(token).copied(),
        found: found.ids.get(token).copied(),
        kind: asked.map(|place| place.kind),
        distance: asked.map(|place| place.distance),
        row: row.map(|row| row.row),
        bucket: row.map(|row| row.bucket),
        prefill: row.is_some_and(|row| row.prefill),
    }
}
