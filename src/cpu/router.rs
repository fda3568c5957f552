//! `router`: which experts a token goes to, and with what weight.

use super::ExecError;
use super::context::Context;
use super::topk::largest;
use crate::ops::{Router, Routing};

/// `sqrt(softplus(x))`.
fn score(x: f32) -> f32 {
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    softplus.sqrt()
}

pub(super) fn run(op: &Router, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, k) = (op.tokens.rows(), op.k);
    let positions = context.positions(&op.tokens)?;
    let logits = context.f32s("logits", &op.logits, rows * op.experts)?;
    let mut choose: Box<dyn FnMut(usize, &[f32]) -> Vec<i32> + '_> = match &op.routing {
        Routing::Scored { bias } => {
            let bias = context.vector("bias", bias, op.experts)?;
            Box::new(move |_, scores| {
                let biased: Vec<f32> = scores.iter().zip(&*bias).map(|(s, b)| s + b).collect();
                largest(&biased, k).into_iter().map(|e| e as i32).collect()
            })
        }
        Routing::Hash { table, token, vocab } => {
            let (table, vocab) = (context.table("table", table, vocab * k)?, *vocab);
            let tokens = context.ints("token", token, rows)?;
            Box::new(move |t, _| {
                let id = usize::try_from(tokens[t]).ok().filter(|&id| id < vocab);
                let mut chosen = id.map_or(Vec::new(), |id| table[id * k..(id + 1) * k].to_vec());
                chosen.retain(|&e| usize::try_from(e).is_ok_and(|e| e < op.experts));
                chosen.sort_unstable();
                chosen
            })
        }
    };
    let ids = context.ints_mut("ids", &op.ids, rows * k)?;
    let weights = context.f32s_mut("weights", &op.weights, rows * k)?;
    ids.fill(-1);
    weights.fill(0.0);
    for t in (0..rows).filter(|&t| positions[t] >= 0) {
        let scores: Vec<f32> =
            logits[t * op.experts..(t + 1) * op.experts].iter().map(|&x| score(x)).collect();
        let chosen = choose(t, &scores);
        let sum: f32 = chosen.iter().map(|&e| scores[e as usize]).sum();
        for (i, &e) in chosen.iter().enumerate().take(k) {
            ids[t * k + i] = e;
            weights[t * k + i] = op.factor * scores[e as usize] / sum;
        }
    }
    Ok(())
}
