//! `rope_store`: key/value rows, normed, rotated and stored.

use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{HEAD_DIM, Op, PAGE_ROWS, RopeStore};

use crate::bench::{At, Bench};
use crate::support::{Dtype, kv_bytes};

pub(crate) fn benches(_: At) -> Vec<Bench> {
    [KvFormat::Fp8, KvFormat::Bf16]
        .into_iter()
        .flat_map(|format| [1, 64].map(|rows| bench(format, rows)))
        .collect()
}

fn bench(format: KvFormat, rows: usize) -> Bench {
    let max_positions = 64;
    Bench::new("rope_store", format!("{format:?} {rows} rows"), rows, move |case, rows| {
        let tokens = case.rows_at(rows, 5);
        let kv = case.noise("kv", Dtype::Bf16, rows * HEAD_DIM);
        let norm = case.noise_vector("norm", HEAD_DIM);
        let rope = case.rope(max_positions);
        let slot = case.longs("slot", &(0..rows as i64).collect::<Vec<_>>());
        let pages = rows.div_ceil(PAGE_ROWS);
        let written = (0..rows).map(|t| kv_bytes(format, PAGE_ROWS, (t / PAGE_ROWS, t % PAGE_ROWS)));
        let pool = case.empty_pool(pages * format.page_bytes(PAGE_ROWS), written);
        let (trained, eps) = (true, 1e-6);
        let op = RopeStore { tokens, kv, norm, rope, slot, pool, pages, format, trained, max_positions, eps };
        case.op(Op::RopeStore(op));
    })
    .moves(rows * (2 * HEAD_DIM + format.row_bytes()), 4 * rows * HEAD_DIM)
}
