//! Oracle of `topk`: sorts, in f32, the type of the logits.

use super::ExecError;
use super::io::Io;
use super::math::top_k;
use crate::ops::TopK;

pub(super) fn run(op: &TopK, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let positions = io.positions(&op.tokens)?;
    let logits = io.real("logits", &op.logits, op.tokens.rows() * op.width)?;
    let selected = io.ints_mut("selected", &op.selected, op.tokens.rows() * op.k)?;
    selected.fill(-1);
    for (t, position) in positions.iter().enumerate() {
        let visible = position.map_or(0, |p| (p + 1) / 4).min(op.width);
        let scores: Vec<f32> =
            logits[t * op.width..t * op.width + visible].iter().map(|&v| v as f32).collect();
        let best = if visible <= op.k { (0..visible).collect() } else { top_k(&scores, op.k) };
        for (i, row) in best.into_iter().enumerate() {
            selected[t * op.k + i] = i32::try_from(row).unwrap_or(-1);
        }
    }
    Ok(())
}
