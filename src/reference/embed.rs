//! Oracle of `embed`.

use super::ExecError;
use super::io::Io;
use crate::ops::Embed;

pub(super) fn run(op: &Embed, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let positions = io.positions(&op.tokens)?;
    let token = io.ints("token", &op.token, op.tokens.rows())?;
    let weight = io.weight("weight", &op.weight, op.vocab * op.hidden)?;
    let mut out = io.sink("out", &op.out, op.tokens.rows() * op.streams * op.hidden)?;
    let zeros = vec![0.0; op.hidden];
    for (t, position) in positions.iter().enumerate() {
        let id = usize::try_from(token[t]).ok().filter(|&id| id < op.vocab && position.is_some());
        let row = id.map_or(&zeros[..], |id| &weight[id * op.hidden..(id + 1) * op.hidden]);
        for stream in 0..op.streams {
            out.set_row(t * op.streams + stream, row);
        }
    }
    Ok(())
}
