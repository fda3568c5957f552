//! `index_store`: a token that completes an index key.

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{INDEX_DIM, IndexStore, Op, PAGE_ROWS, StateLayout};

use crate::bench::{At, Bench};
use crate::compress::{bytes, pooling};
use crate::support::index_bytes;

pub(crate) fn benches(_: At) -> Vec<Bench> {
    let formats = [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4];
    formats.into_iter().flat_map(|format| [1, 64].map(|rows| bench(format, rows))).collect()
}

fn bench(format: IndexFormat, rows: usize) -> Bench {
    let layout = StateLayout { ratio: 4, width: INDEX_DIM };
    Bench::new("index_store", format!("{format:?} {rows} rows"), rows, move |case, rows| {
        let pages = rows.div_ceil(PAGE_ROWS);
        let written = (0..rows).map(|t| index_bytes(format, PAGE_ROWS, (t / PAGE_ROWS, t % PAGE_ROWS)));
        let pool = case.empty_pool(pages * format.page_bytes(PAGE_ROWS), written);
        let pooling = pooling(case, layout, rows, (pool, pages));
        case.op(Op::IndexStore(IndexStore { pooling, format }));
    })
    .moves(rows * (bytes(layout) + format.row_bytes()), 0)
}
