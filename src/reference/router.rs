//! Oracle of `router`.

use super::ExecError;
use super::io::Io;
use super::math::top_k;
use crate::ops::{Router, Routing};

/// `sqrt(softplus(x))`.
fn score(x: f64) -> f64 {
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    softplus.sqrt()
}

/// How the experts of a row are found.
enum Choice<'a> {
    Scored { bias: &'a [f64] },
    Hash { table: &'a [i32], token: &'a [i32], vocab: usize },
}

impl Choice<'_> {
    /// The experts of row `t` in ascending order, entries that name none last. Experts are compared by `score + bias` in
    /// f32, the type that the operation computes in.
    fn experts(&self, t: usize, scores: &[f64], k: usize) -> Vec<Option<usize>> {
        match self {
            Self::Scored { bias } => {
                let ranked: Vec<f32> = scores.iter().zip(*bias).map(|(s, b)| (s + b) as f32).collect();
                top_k(&ranked, k).into_iter().map(Some).collect()
            }
            Self::Hash { table, token, vocab } => {
                let row = usize::try_from(token[t]).ok().filter(|id| id < vocab);
                let entries = row.map_or(&[][..], |id| &table[id * k..(id + 1) * k]);
                let valid = entries.iter().map(|&e| usize::try_from(e).ok().filter(|&e| e < scores.len()));
                let mut chosen: Vec<Option<usize>> = valid.collect();
                chosen.sort_by_key(|e| e.unwrap_or(usize::MAX));
                chosen
            }
        }
    }
}

pub(super) fn run(op: &Router, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let (rows, experts, k) = (op.tokens.rows(), op.experts, op.k);
    let positions = io.positions(&op.tokens)?;
    let logits = io.real("logits", &op.logits, rows * experts)?;
    let choice = match &op.routing {
        Routing::Scored { bias } => Choice::Scored { bias: io.weight("bias", bias, experts)? },
        Routing::Hash { table, token, vocab } => Choice::Hash {
            table: io.table("table", table, vocab * k)?,
            token: io.ints("token", token, rows)?,
            vocab: *vocab,
        },
    };
    let ids = io.ints_mut("ids", &op.ids, rows * k)?;
    let mut weights = io.sink("weights", &op.weights, rows * k)?;
    for (t, position) in positions.iter().enumerate() {
        let scores: Vec<f64> = logits[t * experts..(t + 1) * experts].iter().map(|&x| score(x)).collect();
        let mut chosen = if position.is_some() { choice.experts(t, &scores, k) } else { Vec::new() };
        chosen.resize(k, None);
        let sum: f64 = chosen.iter().flatten().map(|&e| scores[e]).sum();
        for (i, expert) in chosen.into_iter().enumerate() {
            ids[t * k + i] = expert.and_then(|e| i32::try_from(e).ok()).unwrap_or(-1);
            weights.set(t * k + i, expert.map_or(0.0, |e| f64::from(op.factor) * scores[e] / sum));
        }
    }
    Ok(())
}
