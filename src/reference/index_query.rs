//! Oracle of `index_query`.

use super::ExecError;
use super::io::Io;
use super::math::{Turn, rope};
use super::rows::{encode_index, hadamard};
use crate::ops::{INDEX_DIM, IndexQuery, ROPE_DIM};

/// A padded row's codes and scales are zero bytes.
pub(super) fn run(op: &IndexQuery, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let heads = op.tokens.rows() * op.heads;
    let (code_bytes, scale_bytes) = (op.format.code_bytes(), op.format.scale_bytes());
    let positions = io.positions(&op.tokens)?;
    let q = io.real("q", &op.q, heads * INDEX_DIM)?;
    let table = io.weight("rope", &op.rope, op.max_positions * ROPE_DIM)?;
    let codes = io.codes_mut("codes", &op.codes, heads * code_bytes)?;
    let scales = match &op.scales {
        Some(value) => io.codes_mut("scales", value, heads * scale_bytes)?,
        None => &mut [],
    };
    codes.fill(0);
    scales.fill(0);
    for (i, head) in q.chunks(INDEX_DIM).enumerate() {
        if let Some(position) = positions[i / op.heads] {
            let mut row = head.to_vec();
            rope(&mut row, table, position, op.max_positions, Turn::Forward);
            encode_index(
                &hadamard(&row),
                &mut codes[i * code_bytes..(i + 1) * code_bytes],
                &mut scales[i * scale_bytes..(i + 1) * scale_bytes],
                op.format,
            );
        }
    }
    Ok(())
}
