//! Oracle of `query`.

use super::ExecError;
use super::io::Io;
use super::math::{Turn, inverse_rms, rope};
use crate::ops::{HEAD_DIM, Query, ROPE_DIM};

pub(super) fn run(op: &Query, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let len = op.tokens.rows() * op.heads * HEAD_DIM;
    let positions = io.positions(&op.tokens)?;
    let q = io.real("q", &op.q, len)?;
    let table = io.weight("rope", &op.rope, op.max_positions * ROPE_DIM)?;
    let mut out = io.sink("out", &op.out, len)?;
    for (i, head) in q.chunks(HEAD_DIM).enumerate() {
        let row = match positions[i / op.heads] {
            None => vec![0.0; HEAD_DIM],
            Some(position) => {
                let scale = inverse_rms(head, op.eps);
                let mut row: Vec<f64> = head.iter().map(|v| v * scale).collect();
                rope(&mut row, table, position, op.max_positions, Turn::Forward);
                row
            }
        };
        out.set_row(i, &row);
    }
    Ok(())
}
