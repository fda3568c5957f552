//! The fault ladder: how many answers faults of the index cost, beside how many they must cost.
//!
//! A fault is a token whose index is of no use in one layer: random rows are selected in place of the best. The items are needles
//! whose prompts are of one length, so that the tokens of all answers stand at the same positions. First one token of each answer
//! is struck, one after another, and then the whole prompt: that measures how often a fault breaks its own token, whether it
//! breaks another, and whether the prompt's tokens matter. If a fault breaks its own token alone, [`law`] says how many answers
//! fail at any share of faulty tokens, and the rungs hold it to that with draws of their own. A rung is off if the injector
//! strikes more or less often than it says, if faults spread or heal, or if the model leans on its index otherwise than measured.

mod law;
mod report;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use flashlane::checkpoint::{Checkpoint, ModelConfig};
use flashlane::cpu::KnockOut;
use tokio::runtime::Runtime;

use self::law::Singles;
pub use self::report::{Ladder, Layer, Rung, Struck};
use super::suites::{Suite, needles};
use super::{EvalArgs, QUICK, answers, load};
use crate::engine::built_in;
use crate::interval::Proportion;
use crate::sessions::{Local, Model, Script, Session};
use crate::tasks::lexicon::Lexicon;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tokens of every prompt.
    pub prompt: usize,
    /// Longest answer of an item, in characters.
    pub characters: usize,
    /// The layers that are struck; empty: every C4 layer.
    pub layers: Vec<usize>,
    /// Shares of faulty tokens.
    pub rates: Vec<f64>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { prompt: 500, characters: 8, layers: Vec::new(), rates: vec![0.01, 0.1, 0.3, 1.0] }
    }
}

/// Measures every layer of `plan`.
pub(super) fn run(args: &EvalArgs, plan: &Plan) -> Result<Ladder> {
    let started = Instant::now();
    let count = if args.quick { QUICK } else { args.count };
    let mut bench = Bench::new(args, plan, count)?;
    let (model, broken) = bench.play("no faults", &bench.suite.scripts, &[])?;
    let right = Proportion::new(broken.iter().filter(|broken| broken.is_none()).count(), broken.len());
    ensure!(right.count > 0, "--ladder: no item is right without faults, so none can fail by them");
    let mut broken = broken.into_iter();
    bench.suite.scripts.retain(|_| broken.next() == Some(None));
    let config = config(args)?;
    let mut layers = plan.layers.clone();
    if layers.is_empty() {
        layers = (0..config.compress_ratios.len()).filter(|&l| config.compress_ratios[l] == 4).collect();
    }
    let struck = layers.iter().map(|&layer| bench.layer(layer, plan, config.index_topk));
    let struck = struck.collect::<Result<_>>()?;
    let together = match layers.len() {
        0 | 1 => None,
        _ => Some(bench.singles(&layers, plan.prompt)?.summary(&bench.far())),
    };
    Ok(Ladder {
        model,
        seed: args.seed,
        prompt: plan.prompt,
        rows: plan.prompt / 4,
        top_k: config.index_topk,
        right,
        layers: struck,
        together,
        wall_s: started.elapsed().as_secs_f64(),
    })
}

fn config(args: &EvalArgs) -> Result<ModelConfig> {
    Ok(match &args.model.model {
        Some(dir) => Checkpoint::open(dir)?.config,
        None => {
            Checkpoint::from_bytes(built_in::CONFIG, built_in::TENSORS).context("the built-in model")?.config
        }
    })
}

/// The items, and how they are played.
struct Bench<'a> {
    args: &'a EvalArgs,
    suite: Suite,
    runtime: Runtime,
}

impl<'a> Bench<'a> {
    fn new(args: &'a EvalArgs, plan: &Plan, count: usize) -> Result<Self> {
        let suite = needles(&Lexicon::load()?, args.seed, count, plan.prompt, plan.characters)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Self { args, suite, runtime })
    }

    /// The model's name, and the first wrong token of each answer.
    fn play(
        &self,
        what: &'static str,
        scripts: &[Script],
        knocked_out: &[KnockOut],
    ) -> Result<(String, Vec<Option<usize>>)> {
        let loaded = load(&self.args.model(std::slice::from_ref(&self.suite), None), knocked_out)?;
        let model = Model::Local(Local::new(&loaded));
        let sessions = self.runtime.block_on(answers(&model, scripts, self.args.limits(), what));
        let broken = scripts.iter().zip(&sessions).map(|(script, session)| first_wrong(script, session));
        Ok((loaded.name.clone(), broken.collect()))
    }

    fn layer(&self, layer: usize, plan: &Plan, top_k: usize) -> Result<Layer> {
        let singles = self.singles(&[layer], plan.prompt)?;
        // The last token of a prompt is the one that asks for the first of the answer.
        let knocked_out =
            KnockOut { positions: [0, plan.prompt - 1], ..self.knock_out(layer, 1.0, Draws::Singles) };
        let (_, broken) = self.play("prompt struck", &self.suite.scripts, &[knocked_out])?;
        let prompt = failed(&broken);
        let mut rungs = Vec::new();
        for &rate in &plan.rates {
            let knocked_out = self.knock_out(layer, rate, Draws::Rungs);
            let (_, broken) = self.play("rung", &self.suite.scripts, &[knocked_out])?;
            let notes = law::notes(&self.suite.scripts, rate, top_k);
            let (predicted, half) = (singles.predict(rate), singles.predict(rate / 2.0));
            rungs.push(Rung { rate, failed: failed(&broken), predicted, half, notes });
        }
        Ok(Layer { layer, singles: singles.summary(&self.far()), prompt, rungs })
    }

    fn far(&self) -> Vec<bool> {
        self.suite.scripts.iter().map(law::is_far).collect()
    }

    /// Strikes each token of the answers, alone.
    fn singles(&self, layers: &[usize], prompt: usize) -> Result<Singles> {
        let scripts = &self.suite.scripts;
        let mut singles = Singles::of(scripts.iter().map(|script| script.turns[0].ids.len()));
        for token in 0..singles.longest() {
            let struck: Vec<usize> =
                (0..scripts.len()).filter(|&item| token < scripts[item].turns[0].ids.len()).collect();
            let scripts: Vec<Script> = struck.iter().map(|&item| scripts[item].clone()).collect();
            let asks = prompt - 1 + token;
            let knocked_out = layers.iter().map(|&layer| KnockOut {
                positions: [asks, asks + 1],
                ..self.knock_out(layer, 1.0, Draws::Singles)
            });
            let knocked_out: Vec<KnockOut> = knocked_out.collect();
            let (_, broken) = self.play("one token struck", &scripts, &knocked_out)?;
            struck.into_iter().zip(broken).for_each(|(item, broken)| singles.set(item, token, broken));
        }
        Ok(singles)
    }

    fn knock_out(&self, layer: usize, rate: f64, draws: Draws) -> KnockOut {
        KnockOut { rate, seed: self.args.seed.wrapping_add(draws as u64), ..KnockOut::of(layer) }
    }
}

/// What is predicted and what it is held to must not share their random rows.
#[derive(Clone, Copy)]
enum Draws {
    Rungs = 0,
    Singles = 1,
}

fn failed(broken: &[Option<usize>]) -> Proportion {
    Proportion::new(broken.iter().flatten().count(), broken.len())
}

/// The first token that differs from the expected ones; `None` if the answer is right.
fn first_wrong(script: &Script, session: &Session) -> Option<usize> {
    if session.right() {
        return None;
    }
    let expected = script.turns.first().map_or(&[][..], |turn| &turn.ids);
    let found = session.answers.first().map_or(&[][..], |answer| &answer.ids);
    let differs = expected.iter().zip(found).position(|(expected, found)| expected != found);
    Some(differs.unwrap_or(expected.len().min(found.len())))
}
