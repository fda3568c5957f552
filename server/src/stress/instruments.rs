//! What the instruments saw of a run, and the tokens of the steps that they ran again beside those of the others.

use std::io::{self, Write};

use flashlane::instrument::{self, SampledRows};
use serde::Serialize;

use super::compare::{Against, Comparison};
use crate::interval::Proportion;
use crate::sessions::{Session, number};

/// The instruments of one engine, and what its tokens say about them: an instrument that hides what it looks for shows as
/// fewer wrong tokens where it looks.
#[derive(Clone, Debug, Serialize)]
pub struct Instrumented {
    #[serde(flatten)]
    pub report: instrument::Report,
    /// Wrong tokens of steps that were run again; of each session up to its first wrong one, as later ones follow from it.
    pub sampled_tokens: Proportion,
    /// Those of the other steps.
    pub unsampled_tokens: Proportion,
}

impl Instrumented {
    #[must_use]
    pub fn new(
        report: instrument::Report,
        sampled: &SampledRows,
        sessions: &[Session],
        comparison: &Comparison,
    ) -> Self {
        let mut counts = [[0, 0]; 2];
        for session in sessions {
            let mut places = comparison.places.iter();
            let wrong = places.find(|p| p.against == Against::Alone && p.session == session.index);
            let rounds = wrong.map_or(session.answers.len(), |place| place.round + 1);
            for (round, answer) in session.answers.iter().enumerate().take(rounds) {
                let here = wrong.filter(|place| place.round == round);
                let tokens = here.map_or(answer.ids.len(), |place| place.token + 1);
                for token in 0..tokens {
                    let looked = sampled.contains(number(session.index, round), answer.prompt + token);
                    let [wrong, all] = &mut counts[usize::from(!looked)];
                    *wrong += usize::from(here.is_some_and(|place| place.token == token));
                    *all += 1;
                }
            }
        }
        let [sampled_tokens, unsampled_tokens] = counts.map(|[wrong, all]| Proportion::new(wrong, all));
        Self { report, sampled_tokens, unsampled_tokens }
    }

    /// Why the run has not passed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let hits = self.report.canary.as_ref().map_or(0, |canary| canary.hits);
        let differing = self.report.differential.as_ref().map_or(0, |diff| diff.differing);
        (hits + differing > 0).then(|| {
            format!("the canary has {hits} hits, and {differing} steps differ from their second run")
        })
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.report.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
        if self.report.differential.is_some() {
            let (sampled, others) = (&self.sampled_tokens, &self.unsampled_tokens);
            writeln!(out, "wrong tokens in steps run again: {sampled}; in the others: {others}")?;
        }
        Ok(())
    }
}
