//! `index_query`: the indexer's query heads.

use super::ExecError;
use super::context::Context;
use super::rows::with_scratch;
use super::simd::kernel;
use crate::format::hadamard::hadamard_128;
use crate::format::index_row::IndexFormat;
use crate::format::rope::rotate;
use crate::ops::{INDEX_DIM, IndexQuery, ROPE_DIM};

kernel! {
    /// Rotates, mixes and encodes each head of a token.
    fn encode_heads<'a>(
        _lanes; format: IndexFormat, heads: &'a mut [f32], cos_sin: &'a [f32; ROPE_DIM], codes: &'a mut [u8], scales: &'a mut [u8],
    ) -> () {
        let (code_bytes, scale_bytes) = (format.code_bytes(), format.scale_bytes());
        for (h, head) in heads.as_chunks_mut::<INDEX_DIM>().0.iter_mut().enumerate() {
            if let Some(last) = head.last_chunk_mut() {
                rotate(last, cos_sin, false);
            }
            hadamard_128(head);
            let scales = &mut scales[h * scale_bytes..(h + 1) * scale_bytes];
            format.encode(head, &mut codes[h * code_bytes..(h + 1) * code_bytes], scales);
        }
    }
}

pub(super) fn run(op: &IndexQuery, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, width, simd) = (op.tokens.rows(), op.heads * INDEX_DIM, context.simd);
    let (code_bytes, scale_bytes) = (op.heads * op.format.code_bytes(), op.heads * op.format.scale_bytes());
    let positions = context.positions(&op.tokens)?;
    let q = context.rows("q", &op.q, rows * width)?;
    let rope = context.rope(&op.rope, op.max_positions)?;
    let codes = context.codes_mut("codes", &op.codes, rows * code_bytes)?;
    let scales = match &op.scales {
        Some(scales) => context.codes_mut("scales", scales, rows * scale_bytes)?,
        None => &mut [],
    };
    with_scratch(width, |heads| {
        for (t, &position) in positions.iter().enumerate() {
            let codes = &mut codes[t * code_bytes..(t + 1) * code_bytes];
            let scales = scales.get_mut(t * scale_bytes..(t + 1) * scale_bytes).unwrap_or_default();
            let Ok(position) = usize::try_from(position) else {
                codes.fill(0);
                scales.fill(0);
                continue;
            };
            q.copy_to(simd, t * width, heads);
            encode_heads(simd, op.format, heads, rope.row(position), codes, scales);
        }
    });
    Ok(())
}
