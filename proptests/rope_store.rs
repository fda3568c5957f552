//! `rope_store` against the oracle, in every pool format; slots that name no row store nothing.

use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{HEAD_DIM, Op, PAGE_ROWS, ROPE_DIM, RopeStore};
use proptest::prelude::*;

use crate::support::{
    Book, Case, Draw, Dtype, Off, config, kv_bytes, kv_row, kv_step, norm_off, rope_off, rope_table,
};

const POSITIONS: usize = 300;
const EPS: f32 = 1e-6;

pub(crate) struct Setup {
    positions: Vec<i32>,
    slots: Vec<i64>,
    kv: Vec<f32>,
    norm: Vec<f32>,
    pages: usize,
    dtype: Dtype,
}

impl Setup {
    /// Requests of one token each, at random positions, in pages of their own.
    pub(crate) fn drawn(seed: u64, rows: usize, dtype: Dtype) -> Self {
        let mut draw = Draw::new(seed);
        let book = Book::new(&mut draw, rows, POSITIONS.div_ceil(PAGE_ROWS), PAGE_ROWS);
        let at: Vec<usize> = (0..rows).map(|_| draw.below(POSITIONS)).collect();
        Self {
            slots: at.iter().enumerate().map(|(r, &p)| book.slot(r, p)).collect(),
            positions: at.iter().map(|&p| i32::try_from(p).unwrap()).collect(),
            kv: draw.exact(rows * HEAD_DIM, 2.0),
            norm: draw.normals(HEAD_DIM, 1.0),
            pages: book.pages,
            dtype,
        }
    }

    /// Where row `t` is to be stored, if it is.
    fn place(&self, t: usize) -> Option<(usize, usize)> {
        let slot = usize::try_from(self.slots[t]).ok()?;
        let inside = slot / PAGE_ROWS < self.pages && self.positions[t] >= 0;
        inside.then_some((slot / PAGE_ROWS, slot % PAGE_ROWS))
    }

    pub(crate) fn build(&self, format: KvFormat, trained: bool) -> (Case, flashlane::ops::BufferId) {
        let mut case = Case::new();
        let tokens = case.tokens(1, &self.positions);
        let kv = case.real("kv", self.dtype, &self.kv);
        let norm = case.vector("norm", &self.norm);
        let rope = case.rope(POSITIONS);
        let slot = case.longs("slot", &self.slots);
        let size = self.pages * format.page_bytes(PAGE_ROWS);
        let pool = case.pool("pool", vec![0; size]);
        case.unread(pool, 0..size);
        for t in 0..self.positions.len() {
            match self.place(t) {
                Some(place) => {
                    kv_bytes(format, PAGE_ROWS, place).into_iter().for_each(|r| case.writes(pool, r));
                }
                None => case.unread_elements(&kv, t * HEAD_DIM..(t + 1) * HEAD_DIM),
            }
        }
        case.op(Op::RopeStore(RopeStore {
            tokens,
            kv,
            norm,
            rope,
            slot,
            pool,
            pages: self.pages,
            format,
            trained,
            max_positions: POSITIONS,
            eps: EPS,
        }));
        (case, pool)
    }

    fn exact(&self, t: usize) -> Off {
        let row = Off::exact(self.kv[t * HEAD_DIM..(t + 1) * HEAD_DIM].iter().map(|&v| f64::from(v)));
        let position = usize::try_from(self.positions[t]).unwrap();
        rope_off(&norm_off(&row, &self.norm, EPS), &rope_table(POSITIONS)[position * ROPE_DIM..][..ROPE_DIM])
    }

    fn judge(&self, format: KvFormat, trained: bool) {
        let (case, pool) = self.build(format, trained);
        let runs = case.run();
        for t in 0..self.positions.len() {
            let Some(place) = self.place(t) else { continue };
            let exact = self.exact(t);
            let coarse = trained || format != KvFormat::F32;
            runs.agree_rounded(
                |found| kv_row(format, PAGE_ROWS, found.bytes(pool), place),
                &exact,
                coarse,
                |i, v| kv_step(format, trained, &exact.values, i, v),
            );
        }
    }
}

/// The names are those of the report: a 32-bit product of page and stride wraps onto another page. Here it would be the
/// slot that wraps: these are all congruent to good ones modulo 2^32.
#[test]
fn l03_slots_are_64_bit_and_bounded() {
    let mut setup = Setup::drawn(3, 6, Dtype::F32);
    setup.slots[1] += 1 << 32;
    setup.slots[2] = i64::MAX;
    setup.slots[3] = -1;
    setup.slots[4] = i64::try_from(setup.pages * PAGE_ROWS).unwrap();
    setup.positions[5] = -1;
    assert!((1..6).all(|t| setup.place(t).is_none()));
    for format in [KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32] {
        setup.judge(format, true);
    }
}

#[test]
fn trained_rounding_is_the_same_in_every_pool_format() {
    let setup = Setup::drawn(9, 3, Dtype::Bf16);
    let rows = [KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32].map(|format| {
        let (case, pool) = setup.build(format, true);
        let read = |found: &crate::support::Found| -> Vec<Vec<f64>> {
            (0..3).map(|t| kv_row(format, PAGE_ROWS, found.bytes(pool), setup.place(t).unwrap())).collect()
        };
        case.run().all.iter().map(|found| (found.executor, read(found))).collect::<Vec<_>>()
    });
    assert_eq!(rows[0], rows[1]);
    // Not every executor has pools in f32.
    for row in &rows[2] {
        assert!(rows[0].contains(row), "{}", row.0);
    }
}

proptest! {
    #![proptest_config(config(16))]

    #[test]
    fn is_the_oracles(
        seed: u64, rows in 1usize..5, bf16: bool, trained: bool,
        format in prop::sample::select(vec![KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32]),
    ) {
        Setup::drawn(seed, rows, if bf16 { Dtype::Bf16 } else { Dtype::F32 }).judge(format, trained);
    }

    /// A zero row stays zero, whatever its scales.
    #[test]
    fn zero_rows_are_zero(seed: u64, format in prop::sample::select(vec![KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32])) {
        let mut setup = Setup::drawn(seed, 2, Dtype::F32);
        setup.kv.fill(0.0);
        let (case, pool) = setup.build(format, true);
        for found in case.run().all {
            let row = kv_row(format, PAGE_ROWS, found.bytes(pool), setup.place(1).unwrap());
            prop_assert!(row.iter().all(|v| *v == 0.0), "{}", found.executor);
        }
    }
}
