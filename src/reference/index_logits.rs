//! Oracle of `index_logits`.

use super::ExecError;
use super::io::Io;
use super::math::dot;
use super::rows::{decode_index, load_index};
use crate::ops::IndexLogits;

pub(super) fn run(op: &IndexLogits, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let width = op.keys.max_rows();
    let mut logits = io.sink("logits", &op.logits, op.tokens.rows() * width)?;
    scores(op, io, |t, row, score| logits.set(t * width + row, score))
}

/// Calls `each` with every token, visible row and score, in this order.
pub(super) fn scores(
    op: &IndexLogits,
    io: &Io<'_, '_>,
    mut each: impl FnMut(usize, usize, f64),
) -> Result<(), ExecError> {
    let heads = op.tokens.rows() * op.heads;
    let (code_bytes, scale_bytes) = (op.format.code_bytes(), op.format.scale_bytes());
    let positions = io.positions(&op.tokens)?;
    let codes = io.codes("codes", &op.codes, heads * code_bytes)?;
    let scales = match &op.scales {
        Some(value) => io.codes("scales", value, heads * scale_bytes)?,
        None => &[],
    };
    let weights = io.real("weights", &op.weights, heads)?;
    let pages = io.pages(&op.tokens, &op.keys)?;
    let width = op.keys.max_rows();
    let page_bytes = op.format.page_bytes(op.keys.page_rows);
    for (t, position) in positions.iter().enumerate() {
        let visible = position.map_or(0, |p| (p + 1) / 4).min(width);
        let q: Vec<Vec<f64>> = (t * op.heads..(t + 1) * op.heads)
            .map(|i| {
                let codes = &codes[i * code_bytes..(i + 1) * code_bytes];
                decode_index(codes, &scales[i * scale_bytes..(i + 1) * scale_bytes], op.format)
            })
            .collect();
        for r in 0..visible {
            let request = t / op.tokens.per_request;
            let score = pages.find(request, r, page_bytes).map_or(f64::NEG_INFINITY, |(page, place)| {
                let key = load_index(page, place, op.keys.page_rows, op.format);
                let score = |h: usize| weights[t * op.heads + h] * dot(&q[h], &key).max(0.0);
                f64::from(op.scale) * (0..op.heads).map(score).sum::<f64>()
            });
            each(t, r, score);
        }
    }
    Ok(())
}
