//! Oracle of `index_select`: the oracle's scores as f32, the type of logits, sorted.

use super::ExecError;
use super::index_logits::scores;
use super::io::Io;
use super::math::top_k;
use crate::ops::IndexSelect;

pub(super) fn run(op: &IndexSelect, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let mut rows = vec![Vec::new(); op.tokens.rows()];
    scores(&op.scores(), io, |t, _, score| rows[t].push(score as f32))?;
    let selected = io.ints_mut("selected", &op.selected, op.tokens.rows() * op.k)?;
    selected.fill(-1);
    for (t, scores) in rows.iter().enumerate() {
        let best = if scores.len() <= op.k { (0..scores.len()).collect() } else { top_k(scores, op.k) };
        for (i, row) in best.into_iter().enumerate() {
            selected[t * op.k + i] = i32::try_from(row).unwrap_or(-1);
        }
    }
    Ok(())
}
