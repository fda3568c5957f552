//! What the ladder measured, its judgement, and its table.

use std::io::{self, Write};

use serde::Serialize;

use crate::eval::table::write_proportion;
use crate::interval::{Mean, Proportion, percent};

#[derive(Clone, Debug, Serialize)]
pub struct Ladder {
    pub model: String,
    pub seed: u64,
    pub wall_s: f64,
    /// Tokens of every prompt, the rows that C4 layers see of it, and how many they select.
    pub prompt: usize,
    pub rows: usize,
    pub top_k: usize,
    /// Items that are right without a fault; the others are left out.
    pub right: Proportion,
    pub layers: Vec<Layer>,
    /// A single token struck in all of them, if there are several: what one layer loses, another may find.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub together: Option<Struck>,
}

/// Answers that broke when a single token of theirs was struck.
#[derive(Clone, Debug, Serialize)]
pub struct Struck {
    /// The token that asks for a character, by the place of the character.
    pub characters: Vec<Proportion>,
    /// The token that asks for the end of the answer.
    pub end: Proportion,
    /// Of the characters, those that the sliding window still holds, and those that it does not.
    pub within_window: Proportion,
    pub beyond_window: Proportion,
    /// Of all broken ones, those whose first wrong token was not the struck one.
    pub elsewhere: usize,
}

/// Faults in one layer.
#[derive(Clone, Debug, Serialize)]
pub struct Layer {
    pub layer: usize,
    pub singles: Struck,
    /// Answers that broke when every token of the prompt was struck but its last.
    pub prompt: Proportion,
    pub rungs: Vec<Rung>,
}

/// One layer at one share of faulty tokens.
#[derive(Clone, Debug, Serialize)]
pub struct Rung {
    pub rate: f64,
    pub failed: Proportion,
    /// From single faults.
    pub predicted: Mean,
    /// The same for half as many faults.
    pub half: Mean,
    /// By `1 - (1 - rate (1 - k/N))^S`.
    pub notes: f64,
}

impl Rung {
    /// The intervals of what was measured and predicted meet.
    #[must_use]
    pub fn agrees(&self) -> bool {
        meet(&self.failed, &self.predicted)
    }

    /// So many items tell these faults from half as many.
    #[must_use]
    pub fn tells(&self) -> bool {
        !meet(&self.failed, &self.half)
    }

    fn verdict(&self) -> &'static str {
        match (self.agrees(), self.tells()) {
            (false, _) => "OUTSIDE",
            (true, true) => "within",
            (true, false) => "within, as half would be",
        }
    }
}

const fn meet(a: &Proportion, b: &Mean) -> bool {
    a.low <= b.high && b.low <= a.high
}

impl Ladder {
    /// Every rung agrees.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.layers.iter().flat_map(|layer| &layer.rungs).all(Rung::agrees)
    }

    /// In every layer there is a rung that half as many faults would not have passed.
    #[must_use]
    pub fn tells(&self) -> bool {
        self.layers.iter().all(|layer| layer.rungs.iter().any(Rung::tells))
    }

    /// Writes the table as lines of text.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} on held-out needles of seed {}, {:.0} s", self.model, self.seed, self.wall_s)?;
        writeln!(
            out,
            "prompts of {} tokens, {} of {} rows selected; a fault selects random ones",
            self.prompt, self.top_k, self.rows
        )?;
        writeln!(out, "{:<18} {:>9} {:>8}   95 % interval", "", "failed", "rate")?;
        write_proportion(
            "no faults",
            &Proportion::new(self.right.of - self.right.count, self.right.of),
            out,
        )?;
        writeln!(out, " left out below")?;
        for layer in &self.layers {
            layer.write(out)?;
        }
        if let Some(together) = &self.together {
            writeln!(out, "\nin all these layers, a fault at one token of each answer")?;
            together.write(out)?;
        }
        if !self.tells() {
            writeln!(out, "too few items: in some layer no rung tells its faults from half as many")?;
        }
        writeln!(out, "predicted: from the faults at one token, each breaking its own token alone")?;
        writeln!(out, "rule: 1 - (1 - q(1 - k/N))^S over the S characters beyond the window; not judged")
    }
}

impl Struck {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for (place, broken) in self.characters.iter().enumerate() {
            write_proportion(&format!("character {}", place + 1), broken, out)?;
            writeln!(out)?;
        }
        write_proportion("within the window", &self.within_window, out)?;
        writeln!(out)?;
        write_proportion("beyond it", &self.beyond_window, out)?;
        writeln!(out)?;
        write_proportion("end of the answer", &self.end, out)?;
        writeln!(out, " in all, {} broke at another token than the struck one", self.elsewhere)
    }
}

impl Layer {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\nlayer {}, a fault at one token of each answer", self.layer)?;
        self.singles.write(out)?;
        write_proportion("the whole prompt", &self.prompt, out)?;
        writeln!(out, " but for its last token, which asks for character 1")?;
        let head = format!("layer {}, faults at", self.layer);
        writeln!(out, "{head:<38}   95 % interval        predicted, 95 % interval   at half   rule")?;
        for rung in &self.rungs {
            write_proportion(&format!("{} of all tokens", percent(rung.rate)), &rung.failed, out)?;
            let interval = format!("{} to {}", percent(rung.predicted.low), percent(rung.predicted.high));
            writeln!(
                out,
                " {:>7} {interval:<18} {:>7} {:>7} {}",
                percent(rung.predicted.mean),
                percent(rung.half.mean),
                percent(rung.notes),
                rung.verdict()
            )?;
        }
        Ok(())
    }
}
