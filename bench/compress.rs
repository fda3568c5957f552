//! `compress`: a token that completes a row of ratio 4 or 128; and the operands that `index_store` shares with it.

use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{
    BufferId, Compress, HEAD_DIM, Op, Pooling, StateLayout, c4_state_slot, c128_state_slot,
};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype, kv_bytes};

/// Completes a row of either ratio.
const POSITION: usize = 127;
const MAX_POSITIONS: usize = POSITION + 1;

pub(crate) fn benches(_: At) -> Vec<Bench> {
    [4, 128].into_iter().flat_map(|ratio| [1, 64].map(|rows| bench(ratio, rows))).collect()
}

/// Bytes of a row's projection, of the state that it reads, and of that it writes.
pub(crate) fn bytes(layout: StateLayout) -> usize {
    let width = layout.width;
    let state = if layout.ratio == 4 { (7 + 1) * 4 * width } else { (1 + 1) * 3 * width };
    4 * (layout.projection() + state)
}

/// The operands of a compressor over `pool`; each row has a state of its own.
pub(crate) fn pooling(case: &mut Case, layout: StateLayout, rows: usize, pool: (BufferId, usize)) -> Pooling {
    let (len, width) = (layout.len(), layout.width);
    // The sums of a running softmax are positive.
    let state = case.state("state", &vec![1.0; rows * len]);
    let (place, size) = match layout.ratio {
        4 => (c4_state_slot(POSITION), 4 * width),
        _ => (c128_state_slot(POSITION), 3 * width),
    };
    for t in 0..rows {
        let start = 4 * (t * len + place * size);
        case.writes(state, start..start + 4 * size);
    }
    Pooling {
        tokens: case.rows_at(rows, POSITION),
        kvg: case.noise("kvg", Dtype::F32, rows * layout.projection()),
        ape: case.noise_vector("ape", layout.ratio * layout.projection() / 2),
        norm: case.noise_vector("norm", width),
        rope: case.rope(MAX_POSITIONS),
        state_slot: case.ints("state_slot", &(0..rows as i32).collect::<Vec<_>>()),
        row_slot: case.longs("row_slot", &(0..rows as i64).collect::<Vec<_>>()),
        state,
        state_slots: rows,
        layout,
        pool: pool.0,
        pages: pool.1,
        max_positions: MAX_POSITIONS,
        eps: 1e-6,
    }
}

fn bench(ratio: usize, rows: usize) -> Bench {
    let layout = StateLayout { ratio, width: HEAD_DIM };
    let (format, page_rows) = (KvFormat::Fp8, 256 / ratio);
    Bench::new("compress", format!("{format:?} ratio {ratio} {rows} rows"), rows, move |case, rows| {
        let pages = rows.div_ceil(page_rows);
        let written = (0..rows).map(|t| kv_bytes(format, page_rows, (t / page_rows, t % page_rows)));
        let pool = case.empty_pool(pages * format.page_bytes(page_rows), written);
        let pooling = pooling(case, layout, rows, (pool, pages));
        case.op(Op::Compress(Compress { pooling, page_rows, format, trained: true }));
    })
    .moves(rows * (bytes(layout) + format.row_bytes()), 0)
}
