//! `router`: which experts a token goes to, and with what weight.

use std::borrow::Cow;

use super::ExecError;
use super::context::Context;
use super::topk::largest;
use crate::ops::{Router, Routing};

/// `sqrt(softplus(x))`.
fn score(x: f32) -> f32 {
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    softplus.sqrt()
}

/// How experts are chosen, with the operands at hand.
enum Chooser<'a> {
    Scored { bias: Cow<'a, [f32]> },
    Hash { table: &'a [i32], tokens: &'a [i32], vocab: usize },
}

impl<'a> Chooser<'a> {
    fn new<'m: 'a, 'w: 'a>(op: &Router, context: &Context<'m, 'w>) -> Result<Self, ExecError> {
        Ok(match &op.routing {
            Routing::Scored { bias } => Self::Scored { bias: context.vector("bias", bias, op.experts)? },
            Routing::Hash { table, token, vocab } => Self::Hash {
                table: context.table("table", table, vocab * op.k)?,
                tokens: context.ints("token", token, op.tokens.rows())?,
                vocab: *vocab,
            },
        })
    }

    /// Experts of token `t`, ascending, none of them out of range.
    fn choose(&self, op: &Router, t: usize, scores: &[f32]) -> Vec<i32> {
        match self {
            Self::Scored { bias } => {
                let biased: Vec<f32> = scores.iter().zip(&**bias).map(|(s, b)| s + b).collect();
                largest(&biased, op.k).into_iter().map(|e| e as i32).collect()
            }
            Self::Hash { table, tokens, vocab } => {
                let id = usize::try_from(tokens[t]).ok().filter(|id| id < vocab);
                let mut chosen = id.map_or(Vec::new(), |id| table[id * op.k..(id + 1) * op.k].to_vec());
                chosen.retain(|&e| usize::try_from(e).is_ok_and(|e| e < op.experts));
                chosen.sort_unstable();
                chosen
            }
        }
    }
}

pub(super) fn run(op: &Router, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, k) = (op.tokens.rows(), op.k);
    let positions = context.positions(&op.tokens)?;
    let logits = context.f32s("logits", &op.logits, rows * op.experts)?;
    let chooser = Chooser::new(op, context)?;
    let ids = context.ints_mut("ids", &op.ids, rows * k)?;
    let weights = context.f32s_mut("weights", &op.weights, rows * k)?;
    ids.fill(-1);
    weights.fill(0.0);
    for t in (0..rows).filter(|&t| positions[t] >= 0) {
        let scores: Vec<f32> =
            logits[t * op.experts..(t + 1) * op.experts].iter().map(|&x| score(x)).collect();
        let chosen = chooser.choose(op, t, &scores);
        let sum: f32 = chosen.iter().map(|&e| scores[e as usize]).sum();
        for (i, &e) in chosen.iter().enumerate().take(k) {
            ids[t * k + i] = e;
            weights[t * k + i] = op.factor * scores[e as usize] / sum;
        }
    }
    Ok(())
}
