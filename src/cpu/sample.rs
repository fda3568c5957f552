//! `sample`: the next token of each row.

use std::cmp::Reverse;

use super::ExecError;
use super::context::Context;
use super::math::exp;
use crate::ops::{Sample, sample_uniform};

/// What the host asked of one row.
struct Request {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: usize,
    uniform: f32,
}

pub(super) fn run(op: &Sample, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let n = op.samples;
    let logits = context.f32s("logits", &op.logits, n * op.vocab)?;
    let temperature = context.f32s("temperature", &op.temperature, n)?;
    let top_p = context.f32s("top_p", &op.top_p, n)?;
    let min_p = context.f32s("min_p", &op.min_p, n)?;
    let top_k = context.ints("top_k", &op.top_k, n)?;
    let seed = context.seeds("seed", &op.seed, n)?;
    let position = context.ints("position", &op.position, n)?;
    let token = context.ints_mut("token", &op.token, n)?;
    let status = context.ints_mut("status", &op.status, n)?;
    let (carried, slots) = context.carry_mut(&op.carry, op.requests())?;
    for s in 0..n {
        let row = &logits[s * op.vocab..(s + 1) * op.vocab];
        let Ok(position) = u32::try_from(position[s]) else {
            (token[s], status[s]) = (-1, 2);
            continue;
        };
        let request = Request {
            temperature: temperature[s],
            top_p: top_p[s],
            min_p: min_p[s],
            top_k: usize::try_from(top_k[s]).unwrap_or(0),
            uniform: sample_uniform(seed[s], position),
        };
        let best = best(row);
        (token[s], status[s]) = best.map_or((-1, 1), |best| (draw(row, best, &request) as i32, 0));
        if let Some(cell) = op.carry.cell(slots[op.request(s)], position as usize) {
            carried[cell] = token[s];
        }
    }
    Ok(())
}

/// The most likely id; `None` for a row that no distribution has.
fn best(row: &[f32]) -> Option<usize> {
    let mut best = None;
    let mut max = f32::NEG_INFINITY;
    for (id, &logit) in row.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return None;
        }
        if logit > max {
            (best, max) = (Some(id), logit);
        }
    }
    best
}

/// Draws from what the filters keep; masses are sums in f64 of f32 terms, most likely first.
fn draw(row: &[f32], best: usize, request: &Request) -> usize {
    if request.temperature.is_nan() || request.temperature <= 0.0 {
        return best;
    }
    let mass = |id: u32| f64::from(exp((row[id as usize] - row[best]) / request.temperature));
    let mut kept: Vec<u32> =
        (0u32..).zip(row).filter(|(_, l)| **l > f32::NEG_INFINITY).map(|(id, _)| id).collect();
    if request.top_k > 0 || request.top_p < 1.0 {
        // Likelier first, ties to the smaller id; the logits are numbers, so their order is total.
        kept.sort_unstable_by_key(|&id| (Reverse(ordered(row[id as usize])), id));
        if request.top_k > 0 {
            kept.truncate(request.top_k);
        }
        let enough = f64::from(request.top_p) * kept.iter().map(|&id| mass(id)).sum::<f64>();
        let mut reached = 0.0;
        let last = kept.iter().position(|&id| {
            reached += mass(id);
            reached >= enough
        });
        kept.truncate(last.map_or(kept.len(), |last| last + 1));
        kept.sort_unstable();
    }
    kept.retain(|&id| mass(id) >= f64::from(request.min_p));
    let target = f64::from(request.uniform) * kept.iter().map(|&id| mass(id)).sum::<f64>();
    let mut walked = 0.0;
    let drawn = kept.iter().find(|&&id| {
        walked += mass(id);
        walked > target
    });
    drawn.map_or(best, |&id| id as usize)
}

/// An integer in the order of the numbers; both zeros are one.
fn ordered(x: f32) -> i32 {
    let bits = (x + 0.0).to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}
