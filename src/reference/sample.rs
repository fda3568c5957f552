//! Oracle of `sample`: filters by sorting, draws by walking.

use super::ExecError;
use super::io::Io;
use crate::ops::{Sample, sample_uniform};

/// What the host asked of one row.
struct Request {
    temperature: f64,
    top_p: f64,
    min_p: f64,
    top_k: i32,
    uniform: f64,
}

pub(super) fn run(op: &Sample, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let n = op.samples;
    let logits = io.real("logits", &op.logits, n * op.vocab)?;
    let temperature = io.real("temperature", &op.temperature, n)?;
    let top_p = io.real("top_p", &op.top_p, n)?;
    let min_p = io.real("min_p", &op.min_p, n)?;
    let top_k = io.ints("top_k", &op.top_k, n)?;
    let seed = io.seeds("seed", &op.seed, n)?;
    let position = io.ints("position", &op.position, n)?;
    let token = io.ints_mut("token", &op.token, n)?;
    let status = io.ints_mut("status", &op.status, n)?;
    let (carried, slots) = io.carry_mut(&op.carry, op.requests())?;
    for s in 0..n {
        let row = &logits[s * op.vocab..(s + 1) * op.vocab];
        let bad = row.iter().any(|v| v.is_nan() || *v == f64::INFINITY);
        (token[s], status[s]) = match u32::try_from(position[s]) {
            Err(_) => (-1, 2),
            Ok(_) if bad || row.iter().all(|v| *v == f64::NEG_INFINITY) => (-1, 1),
            Ok(position) => {
                let request = Request {
                    temperature: temperature[s],
                    top_p: top_p[s],
                    min_p: min_p[s],
                    top_k: top_k[s],
                    uniform: f64::from(sample_uniform(seed[s], position)),
                };
                (i32::try_from(draw(row, &request)).unwrap_or(-1), 0)
            }
        };
        let position = usize::try_from(position[s]).ok();
        if let Some(cell) = position.and_then(|position| op.carry.cell(slots[op.request(s)], position)) {
            carried[cell] = token[s];
        }
    }
    Ok(())
}

/// Ids by falling logit, ties to the smaller id; -0 ties with 0.
fn by_likelihood(row: &[f64]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    ids.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b)));
    ids
}

fn draw(row: &[f64], request: &Request) -> usize {
    let mut kept = by_likelihood(row);
    let best = kept[0];
    if request.temperature.is_nan() || request.temperature <= 0.0 {
        return best;
    }
    let mass = |id: usize| ((row[id] - row[best]) / request.temperature).exp();
    if let Some(k) = usize::try_from(request.top_k).ok().filter(|&k| k > 0) {
        kept.truncate(k);
    }
    let total: f64 = kept.iter().map(|&id| mass(id)).sum();
    let mut reached = 0.0;
    let enough = kept.iter().position(|&id| {
        reached += mass(id);
        reached >= request.top_p * total
    });
    kept.truncate(enough.map_or(kept.len(), |last| last + 1));
    kept.retain(|&id| mass(id) >= request.min_p);
    kept.sort_unstable();
    let total: f64 = kept.iter().map(|&id| mass(id)).sum();
    let mut walked = 0.0;
    let drawn = kept.iter().find(|&&id| {
        walked += mass(id);
        walked > request.uniform * total
    });
    drawn.copied().unwrap_or(best)
}
