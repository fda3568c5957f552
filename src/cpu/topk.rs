//! `topk`: the rows with the best scores, by exact selection.

use super::ExecError;
use super::context::Context;
use super::knock_out::{KnockOut, random_rows};
use super::rows::for_chunks;
use crate::ops::TopK;

/// Scores as integers in the same order: NaN lowest, both zeros equal.
fn rank(score: f32) -> u32 {
    if score.is_nan() {
        return 0;
    }
    // -0 + 0 is +0.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Indices of the `k` largest scores, ascending; ties to the smaller index.
pub(super) fn largest(scores: &[f32], k: usize) -> Vec<u32> {
    // The rank above, the inverted index below: all keys differ, and larger is better.
    let mut keys: Vec<u64> =
        (0u32..).zip(scores).map(|(i, &s)| u64::from(rank(s)) << 32 | u64::from(!i)).collect();
    if k == 0 {
        return Vec::new();
    }
    if k < keys.len() {
        keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        keys.truncate(k);
    }
    let mut best: Vec<u32> = keys.into_iter().map(|key| !(key as u32)).collect();
    best.sort_unstable();
    best
}

/// Fills `selected` with the rows of the best scores, ascending, then -1; no score is read if all fit. Random rows where
/// the layer is knocked out.
pub(super) fn choose(scores: &[f32], selected: &mut [i32], position: i32, knocked_out: Option<KnockOut>) {
    let (n, k) = (scores.len(), selected.len());
    selected.fill(-1);
    if n <= k {
        selected.iter_mut().zip(0..).take(n).for_each(|(s, i)| *s = i);
        return;
    }
    let struck = knocked_out.and_then(|layer| layer.strikes(position, scores));
    let best = struck.map_or_else(|| largest(scores, k), |mut random| random_rows(n, k, &mut random));
    for (s, i) in selected.iter_mut().zip(best) {
        *s = i as i32;
    }
}

pub(super) fn run(op: &TopK, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let rows = op.tokens.rows();
    let positions = context.positions(&op.tokens)?;
    let logits = context.f32s("logits", &op.logits, rows * op.width)?;
    let knocked_out = context.knocked_out;
    let selected = context.ints_mut("selected", &op.selected, rows * op.k)?;
    for_chunks(selected, op.k, 8 * rows * op.width, |t, selected| {
        let n = usize::try_from(positions[t]).map_or(0, |p| ((p + 1) / 4).min(op.width));
        choose(&logits[t * op.width..t * op.width + n], selected, positions[t], knocked_out);
    });
    Ok(())
}
