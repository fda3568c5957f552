//! `embed`: token ids to residual streams.

use super::ExecError;
use super::context::Context;
use super::rows::with_buffer;
use crate::ops::Embed;

pub(super) fn run(op: &Embed, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, width, simd) = (op.tokens.rows(), op.streams * op.hidden, context.simd);
    let positions = context.positions(&op.tokens)?;
    let tokens = context.ints("token", &op.token, rows)?;
    let weight = context.matrix("weight", &op.weight, op.vocab, op.hidden)?;
    let out = context.rows_mut("out", &op.out, rows * width)?;
    out.fill(simd, width, rows * width, |t, streams| {
        let id = usize::try_from(tokens[t]).ok().filter(|&id| id < op.vocab && positions[t] >= 0);
        match id {
            None => streams.fill(0.0),
            Some(id) => with_buffer(|buffer| {
                let row = weight.decode(simd, id..id + 1, buffer);
                streams.chunks_exact_mut(op.hidden).for_each(|stream| stream.copy_from_slice(row));
            }),
        }
    });
    Ok(())
}
