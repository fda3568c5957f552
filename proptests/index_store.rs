//! `index_store` against the oracle: the compressor's rows, rotated, in every index format.

use std::ops::Range;

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{BufferId, INDEX_DIM, IndexStore, Op, PAGE_ROWS, StateLayout};
use proptest::prelude::*;

use crate::compress::{Finished, POSITIONS, Setup};
use crate::support::{Case, Draw, config, hadamard_off, index_bytes, index_row, index_step};

pub(crate) const LAYOUT: StateLayout = StateLayout { ratio: 4, width: INDEX_DIM };
const FORMATS: [IndexFormat; 4] = [IndexFormat::F32, IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4];

/// The case, its state and its pool.
pub(crate) fn build(setup: &Setup, format: IndexFormat) -> (Case, BufferId, BufferId) {
    let mut case = Case::new();
    let size = setup.book.pages * format.page_bytes(PAGE_ROWS);
    let pool = case.pool("pool", vec![0; size]);
    case.unread(pool, 0..size);
    for row in setup.finished() {
        index_bytes(format, PAGE_ROWS, row.place).into_iter().for_each(|r| case.writes(pool, r));
    }
    let pooling = setup.pooling(&mut case, pool);
    let state = pooling.state;
    case.op(Op::IndexStore(IndexStore { pooling, format }));
    (case, state, pool)
}

fn judge(setup: &Setup, format: IndexFormat) {
    let (case, state, pool) = build(setup, format);
    let runs = case.run();
    setup.judge_state(&runs, state);
    for Finished { place, exact } in setup.finished() {
        let exact = hadamard_off(&exact);
        runs.agree_rounded(
            |found| index_row(format, PAGE_ROWS, found.bytes(pool), place),
            &exact,
            format != IndexFormat::F32,
            |i, v| index_step(format, &exact.values, i, v),
        );
    }
}

#[test]
fn every_format_stores_the_rows_of_a_mixed_batch() {
    let setup = Setup::drawn(&mut Draw::new(1), LAYOUT, &[0..9, 254..263, 7..8, 600..604]);
    assert_eq!(setup.finished().len(), 2 + 2 + 1 + 1);
    FORMATS.into_iter().for_each(|format| judge(&setup, format));
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn is_the_oracles(seed: u64, requests in 1usize..5, format in prop::sample::select(FORMATS.to_vec())) {
        let mut draw = Draw::new(seed);
        let ranges: Vec<Range<usize>> = (0..requests).map(|_| {
            let start = draw.below(POSITIONS - 20);
            start..start + 1 + draw.below(12)
        }).collect();
        judge(&Setup::drawn(&mut draw, LAYOUT, &ranges), format);
    }
}
