//! The fault ladder: how many answers faults of the index cost, beside how many they must cost.
//!
//! A fault is a token whose index scores are of no use in one layer: random rows are selected in place of the best. A retrieved
//! character is lost unless its row is among them by chance, so an item of `S` characters that see `N` rows fails with
//! `1 - (1 - q(1 - k/N))^S`. This is the detector's own test: the model fails as often as its index, and no more.

use std::io::{self, Write};
use std::time::Instant;

use anyhow::{Context, Result};
use flashlane::checkpoint::{Checkpoint, ModelConfig};
use flashlane::cpu::KnockOut;
use serde::Serialize;

use super::suites::{Suite, recalls};
use super::table::write_proportion;
use super::{EvalArgs, QUICK, answers, load};
use crate::engine::built_in;
use crate::interval::{Proportion, percent};
use crate::sessions::{Local, Model, Script};
use crate::tasks::lexicon::{EOS, Lexicon};

/// Shares of faulty tokens.
const RATES: [f64; 3] = [0.01, 0.1, 1.0];
/// A row further back than this is beyond the sliding window and can only be found by the index.
const WINDOW: usize = 128;

#[derive(Clone, Debug, Serialize)]
pub struct Ladder {
    pub model: String,
    pub seed: u64,
    pub wall_s: f64,
    /// Items that are right without a fault; the others are left out.
    pub right: Proportion,
    pub rungs: Vec<Rung>,
}

/// One layer at one rate.
#[derive(Clone, Debug, Serialize)]
pub struct Rung {
    pub layer: usize,
    pub rate: f64,
    pub failed: Proportion,
    pub predicted: f64,
    /// The prediction supposes that no other layer finds the row: true of the last C4 layer, a bound for those before.
    pub last: bool,
}

impl Rung {
    /// The prediction is in the interval of what was measured.
    #[must_use]
    pub fn agrees(&self) -> bool {
        (self.failed.low..=self.failed.high).contains(&self.predicted)
    }
}

impl Ladder {
    /// The last C4 layer fails as often as predicted.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.rungs.iter().filter(|rung| rung.last).all(Rung::agrees)
    }

    /// Writes the table as lines of text.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} on held-out items of seed {}, {:.0} s", self.model, self.seed, self.wall_s)?;
        writeln!(out, "{:<18} {:>9} {:>8}   {:<20} predicted", "faults", "failed", "rate", "95 % interval")?;
        write_proportion("none", &Proportion::new(self.right.of - self.right.count, self.right.of), out)?;
        writeln!(out, " (left out below)")?;
        for rung in &self.rungs {
            let name = format!("layer {}, {}", rung.layer, percent(rung.rate));
            write_proportion(&name, &rung.failed, out)?;
            let verdict = match (rung.agrees(), rung.last) {
                (true, _) => "within",
                (false, true) => "OUTSIDE",
                (false, false) => "a bound: the layers behind find rows too",
            };
            writeln!(out, " {:>9} {verdict}", percent(rung.predicted))?;
        }
        Ok(())
    }
}

/// Measures every rung.
pub(super) fn run(args: &EvalArgs) -> Result<Ladder> {
    let started = Instant::now();
    let lexicon = Lexicon::load()?;
    let count = if args.quick { QUICK } else { args.count };
    let mut suite = recalls(&lexicon, args.seed, count)?;
    let config = config(args)?;
    let layers: Vec<usize> =
        (0..config.compress_ratios.len()).filter(|&l| config.compress_ratios[l] == 4).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let play = |suite: &Suite, knocked_out: &[KnockOut]| -> Result<(String, Vec<bool>)> {
        let loaded = load(&args.model(std::slice::from_ref(suite), None), knocked_out)?;
        let model = Model::Local(Local::new(&loaded));
        let sessions = runtime.block_on(answers(&model, &suite.scripts, args.limits(), suite.name));
        Ok((loaded.name.clone(), sessions.iter().map(crate::sessions::Session::right).collect()))
    };
    let (model, right) = play(&suite, &[])?;
    let mut of_item = right.iter();
    suite.scripts.retain(|_| of_item.next().is_some_and(|right| *right));
    (0..).zip(&mut suite.scripts).for_each(|(index, script)| script.index = index);
    let mut rungs = Vec::new();
    for &layer in &layers {
        for rate in RATES {
            let knocked_out = KnockOut { layer, rate, seed: args.seed };
            let (_, right) = play(&suite, &[knocked_out])?;
            let failed = Proportion::new(right.iter().filter(|right| !**right).count(), right.len());
            let predicted = predicted(&suite.scripts, rate, config.index_topk);
            rungs.push(Rung { layer, rate, failed, predicted, last: layers.last() == Some(&layer) });
        }
    }
    let right = Proportion::new(right.iter().filter(|right| **right).count(), right.len());
    Ok(Ladder { model, seed: args.seed, wall_s: started.elapsed().as_secs_f64(), right, rungs })
}

fn config(args: &EvalArgs) -> Result<ModelConfig> {
    Ok(match &args.model.model {
        Some(dir) => Checkpoint::open(dir)?.config,
        None => {
            Checkpoint::from_bytes(built_in::CONFIG, built_in::TENSORS).context("the built-in model")?.config
        }
    })
}

/// Mean over the items of `1 - (1 - q(1 - k/N))^S`, with the `N` of each character.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn predicted(scripts: &[Script], rate: f64, k: usize) -> f64 {
    let fails = scripts.iter().map(|script| {
        let found = retrieved(script).map(|position| {
            // The token before it asks, and sees the rows that are full by then.
            let rows = position / 4;
            1.0 - rate * (1.0 - k.min(rows) as f64 / rows.max(1) as f64)
        });
        1.0 - found.product::<f64>()
    });
    fails.sum::<f64>() / scripts.len().max(1) as f64
}

/// Positions of the characters of the answer that lie beyond the window.
fn retrieved(script: &Script) -> impl Iterator<Item = usize> + '_ {
    script.turns.iter().flat_map(move |turn| {
        let of_turn = (turn.start..).zip(&turn.ids);
        let written = of_turn.filter(|(_, id)| **id != u32::from(EOS)).map(|(position, _)| position);
        written.filter(move |&position| script.place(position).is_some_and(|place| place.distance > WINDOW))
    })
}

#[cfg(test)]
mod tests {
    use super::{predicted, retrieved};
    use crate::eval::suites::recalls;
    use crate::tasks::lexicon::Lexicon;

    #[test]
    fn the_prediction_follows_the_formula() {
        let lexicon = Lexicon::load().unwrap();
        let scripts = recalls(&lexicon, 3, 40).unwrap().scripts;
        let far: Vec<usize> = scripts.iter().map(|script| retrieved(script).count()).collect();
        assert!(far.contains(&0) && far.iter().any(|&n| n >= 6), "near and far items: {far:?}");
        assert_eq!(predicted(&scripts, 0.0, 16), 0.0);
        let one = &scripts[far.iter().position(|&n| n >= 6).unwrap()..][..1];
        let at = retrieved(one.first().unwrap()).next().unwrap();
        let each: f64 = 1.0 - 0.1 * (1.0 - 16.0 / (at / 4) as f64);
        let whole = 1.0 - each.powi(i32::try_from(retrieved(&one[0]).count()).unwrap());
        assert!((predicted(one, 0.1, 16) - whole).abs() < 5e-3);
        let never_seen = far.iter().filter(|&&n| n == 0).count() as f64 / 40.0;
        assert!(predicted(&scripts, 1.0, 0) <= 1.0 - never_seen + 1e-9);
    }
}
