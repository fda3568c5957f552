//! Oracle of `embed`.

use super::ExecError;
use super::io::Io;
use crate::ops::Embed;

pub(super) fn run(op: &Embed, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let positions = io.positions(&op.tokens)?;
    let token = io.ints("token", &op.token, op.tokens.rows())?;
    let (carried, slots) = io.carry(&op.carry, op.tokens.requests)?;
    let weight = io.weight("weight", &op.weight, op.vocab * op.hidden)?;
    let mut out = io.sink("out", &op.out, op.tokens.rows() * op.streams * op.hidden)?;
    let ids = io.ints_mut("ids", &op.ids, op.tokens.rows())?;
    let zeros = vec![0.0; op.hidden];
    for (t, position) in positions.iter().enumerate() {
        let token = position.and_then(|position| match token[t] {
            Embed::CARRIED => op.carry.cell(slots[t / op.tokens.per_request], position).map(|c| carried[c]),
            given => Some(given),
        });
        let id = token.and_then(|token| usize::try_from(token).ok()).filter(|&id| id < op.vocab);
        ids[t] = id.map_or(-1, |id| id as i32);
        let row = id.map_or(&zeros[..], |id| &weight[id * op.hidden..(id + 1) * op.hidden]);
        for stream in 0..op.streams {
            out.set_row(t * op.streams + stream, row);
        }
    }
    Ok(())
}
