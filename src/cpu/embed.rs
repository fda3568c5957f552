//! `embed`: token ids to residual streams.

use super::ExecError;
use super::context::Context;
use super::rows::with_buffer;
use crate::ops::Embed;

pub(super) fn run(op: &Embed, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, width, simd) = (op.tokens.rows(), op.streams * op.hidden, context.simd);
    let positions = context.positions(&op.tokens)?;
    let tokens = context.ints("token", &op.token, rows)?;
    let (carried, slots) = context.carry(&op.carry, op.tokens.requests)?;
    let weight = context.matrix("weight", &op.weight, op.vocab, op.hidden)?;
    let out = context.rows_mut("out", &op.out, rows * width)?;
    let ids = context.ints_mut("ids", &op.ids, rows)?;
    for (t, id) in ids.iter_mut().enumerate() {
        let token = usize::try_from(positions[t]).ok().and_then(|position| match tokens[t] {
            Embed::CARRIED => op.carry.cell(slots[t / op.tokens.per_request], position).map(|c| carried[c]),
            given => Some(given),
        });
        *id = token.filter(|&id| usize::try_from(id).is_ok_and(|id| id < op.vocab)).unwrap_or(-1);
    }
    let ids = &*ids;
    out.fill(simd, width, rows * width, |t, streams| match usize::try_from(ids[t]) {
        Err(_) => streams.fill(0.0),
        Ok(id) => with_buffer(|buffer| {
            let row = weight.decode(simd, id..id + 1, buffer);
            streams.chunks_exact_mut(op.hidden).for_each(|stream| stream.copy_from_slice(row));
        }),
    });
    Ok(())
}
