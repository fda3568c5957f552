//! `index_select`: scores and choice, a few tokens at a time.

use super::ExecError;
use super::context::Context;
use super::index_logits::Job;
use super::rows::{for_chunks, with_scratch};
use super::topk::choose;
use crate::ops::IndexSelect;

pub(super) fn run(op: &IndexSelect, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let scores = op.scores();
    let job = Job::new(&scores, context)?;
    let (width, k, knocked_out) = (op.keys.max_rows(), op.k, context.knocked_out);
    let selected = context.ints_mut("selected", &op.selected, op.tokens.rows() * k)?;
    for_chunks(selected, job.tokens_of_a_task() * k, job.work(), |task, selected| {
        let first = task * job.tokens_of_a_task();
        let visible: Vec<usize> = (first..first + selected.len() / k).map(|t| job.visible_of(t)).collect();
        with_scratch(visible.len() * width, |logits| {
            if visible.iter().any(|&n| n > k) {
                job.tile(first, logits);
            }
            for (i, selected) in selected.chunks_exact_mut(k).enumerate() {
                let scores = &logits[i * width..i * width + visible[i]];
                choose(scores, selected, job.positions[first + i], knocked_out);
            }
        });
    });
    Ok(())
}
