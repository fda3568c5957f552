//! `compress` against the oracle and against pooling written without any state.

use std::ops::Range;

use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{
    BufferId, Compress, HEAD_DIM, Op, Pooling, ROPE_DIM, StateLayout, c4_state_slot, c128_state_slot,
};
use proptest::prelude::*;

use crate::support::{
    Book, Case, Draw, Dtype, EPS, Found, Off, Runs, config, kv_bytes, kv_row, kv_step, norm_off, rope_off,
    rope_table,
};

pub(crate) const POSITIONS: usize = 1100;
pub(crate) const RMS_EPS: f32 = 1e-6;

/// Some tokens of some requests, and the state that earlier tokens left.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) layout: StateLayout,
    pub(crate) per_request: usize,
    pub(crate) positions: Vec<i32>,
    pub(crate) kvg: Vec<f32>,
    pub(crate) ape: Vec<f32>,
    pub(crate) norm: Vec<f32>,
    pub(crate) state: Vec<f32>,
    pub(crate) slots: Vec<i32>,
    pub(crate) num_slots: usize,
    pub(crate) row_slots: Vec<i64>,
    pub(crate) book: Book,
}

/// A row that a token completes.
pub(crate) struct Finished {
    pub(crate) place: (usize, usize),
    pub(crate) exact: Off,
}

pub(crate) fn page_rows(ratio: usize) -> usize {
    256 / ratio
}

impl Setup {
    /// A request per range of positions, each padded to the longest.
    pub(crate) fn drawn(draw: &mut Draw, layout: StateLayout, ranges: &[Range<usize>]) -> Self {
        let (requests, ratio) = (ranges.len(), layout.ratio);
        let per_request = ranges.iter().map(ExactSizeIterator::len).max().unwrap();
        let book = Book::new(draw, requests, POSITIONS.div_ceil(256), page_rows(ratio));
        let mut setup = Self {
            layout,
            per_request,
            positions: vec![-1; requests * per_request],
            kvg: draw.normals(requests * per_request * layout.projection(), 1.0),
            ape: draw.normals(ratio * layout.projection() / 2, 0.7),
            norm: draw.normals(layout.width, 1.0),
            state: draw.normals((requests + 2) * layout.len(), 1.0),
            slots: draw.permutation(requests + 2)[..requests]
                .iter()
                .map(|&s| i32::try_from(s).unwrap())
                .collect(),
            num_slots: requests + 2,
            row_slots: vec![-1; requests * per_request],
            book,
        };
        if ratio == 128 {
            // The sums of a running softmax are at least 1.
            for (i, v) in setup.state.iter_mut().enumerate() {
                *v = if i / layout.width % 3 == 1 { 1.0 + v.abs() } else { *v };
            }
        }
        for (r, range) in ranges.iter().enumerate() {
            for (i, p) in range.clone().enumerate() {
                setup.positions[r * per_request + i] = i32::try_from(p).unwrap();
                if (p + 1) % ratio == 0 {
                    setup.row_slots[r * per_request + i] = setup.book.slot(r, p / ratio);
                }
            }
        }
        setup
    }

    /// The step that holds token `t` alone, of a request alone, over the given state.
    fn single(&self, t: usize, state: Vec<f32>) -> Self {
        let projection = self.layout.projection();
        Self {
            per_request: 1,
            positions: vec![self.positions[t]],
            kvg: self.kvg[t * projection..(t + 1) * projection].to_vec(),
            slots: vec![self.slots[t / self.per_request]],
            row_slots: vec![self.row_slots[t]],
            state,
            ..self.clone()
        }
    }

    /// Where position `p` keeps its state, in elements.
    fn state_range(&self, request: usize, p: usize) -> Range<usize> {
        let slot = usize::try_from(self.slots[request]).unwrap() * self.layout.len();
        let (place, size) = match self.layout.ratio {
            4 => (c4_state_slot(p), 4 * self.layout.width),
            _ => (c128_state_slot(p), 3 * self.layout.width),
        };
        slot + place * size..slot + (place + 1) * size
    }

    /// Requests that take part, with their rows and positions.
    fn runs(&self) -> Vec<(usize, Vec<(usize, usize)>)> {
        let requests = self.positions.len() / self.per_request;
        (0..requests)
            .filter(|&r| usize::try_from(self.slots[r]).is_ok_and(|s| s < self.num_slots))
            .map(|r| {
                let rows = r * self.per_request..(r + 1) * self.per_request;
                (r, rows.filter_map(|t| Some((t, usize::try_from(self.positions[t]).ok()?))).collect())
            })
            .collect()
    }

    /// What every operation over a compressor needs, its state readable only where it must be.
    pub(crate) fn pooling(&self, case: &mut Case, pool: BufferId) -> Pooling {
        let tokens = case.tokens(self.per_request, &self.positions);
        let kvg = case.real("kvg", Dtype::F32, &self.kvg);
        let projection = self.layout.projection();
        for t in (0..self.positions.len()).filter(|&t| self.positions[t] < 0) {
            case.unread_elements(&kvg, t * projection..(t + 1) * projection);
        }
        let ape = case.weight(
            "ape",
            self.layout.ratio,
            projection / 2,
            crate::support::Stored::F32(self.ape.clone()),
        );
        let norm = case.vector("norm", &self.norm);
        let rope = case.rope(POSITIONS);
        let state_slot = case.ints("state_slot", &self.slots);
        let row_slot = case.longs("row_slot", &self.row_slots);
        let state = case.state("state", &self.state);
        let mut readable = Vec::new();
        for (request, tokens) in self.runs() {
            let bytes = |p: usize| {
                let range = self.state_range(request, p);
                4 * range.start..4 * range.end
            };
            let Some(&(_, first)) = tokens.first() else { continue };
            let reads = match self.layout.ratio {
                // The four tokens before those that the first row of this step completes, and those in it already gone.
                4 => (first / 4 * 4).saturating_sub(4)..first,
                _ if first % 128 == 0 => first..first,
                _ => first - 1..first,
            };
            readable.extend(reads.map(bytes));
            tokens.iter().for_each(|&(_, p)| case.writes(state, bytes(p)));
        }
        case.unread_except(state, &readable);
        Pooling {
            tokens,
            kvg,
            ape,
            norm,
            rope,
            state_slot,
            row_slot,
            state,
            state_slots: self.num_slots,
            layout: self.layout,
            pool,
            pages: self.book.pages,
            max_positions: POSITIONS,
            eps: RMS_EPS,
        }
    }

    /// A token's value and gate in a column.
    fn candidate(&self, t: usize, p: usize, column: usize) -> (f64, f64) {
        let columns = self.layout.projection() / 2;
        let at = t * 2 * columns + column;
        let gate = self.kvg[at + columns] + self.ape[p % self.layout.ratio * columns + column];
        (f64::from(self.kvg[at]), f64::from(gate))
    }

    /// The candidates of channel `c` of the row that `p` completes: as (weight before the exponential, value, gate).
    fn candidates(
        &self,
        request: usize,
        rows: &[(usize, usize)],
        p: usize,
        c: usize,
    ) -> Vec<(f64, f64, f64)> {
        let (ratio, width) = (self.layout.ratio, self.layout.width);
        let here = |q: usize| rows.iter().find(|(_, at)| *at == q).map(|(t, _)| *t);
        let state = |q: usize, i: usize| f64::from(self.state[self.state_range(request, q).start + i]);
        if ratio == 4 {
            let own = p - 3;
            let columns =
                (own.saturating_sub(4)..own).map(|q| (q, c)).chain((own..=p).map(|q| (q, width + c)));
            let one = |(q, column): (usize, usize)| {
                let (v, g) = here(q).map_or_else(
                    || (state(q, column), state(q, 2 * width + column)),
                    |t| self.candidate(t, q, column),
                );
                (1.0, v, g)
            };
            return columns.map(one).collect();
        }
        let first = p + 1 - 128;
        let mut all: Vec<_> = (first..=p)
            .filter_map(|q| here(q).map(|t| self.candidate(t, q, c)))
            .map(|(v, g)| (1.0, v, g))
            .collect();
        if let Some(before) = rows[0].1.checked_sub(1).filter(|&q| q >= first) {
            let (max, sum, acc) = (state(before, c), state(before, width + c), state(before, 2 * width + c));
            all.push((sum, acc / sum, max));
        }
        all
    }

    /// The rows that this step completes. Pooling is a softmax over candidates: an exponential is good to its argument's
    /// rounding and 16 more, in numerator and denominator; the running form of ratio 128 repeats that for every token.
    pub(crate) fn finished(&self) -> Vec<Finished> {
        let (ratio, width) = (self.layout.ratio, self.layout.width);
        let table = rope_table(POSITIONS);
        let mut finished = Vec::new();
        for (request, rows) in self.runs() {
            for &(t, p) in rows.iter().filter(|(t, p)| (p + 1) % ratio == 0 && self.row_slots[*t] >= 0) {
                let mut pooled = Off::exact(vec![0.0; width]);
                for c in 0..width {
                    let all = self.candidates(request, &rows, p, c);
                    let top = all.iter().fold(f64::NEG_INFINITY, |m, x| m.max(x.2));
                    let low = all.iter().fold(f64::INFINITY, |m, x| m.min(x.2));
                    let sum: f64 = all.iter().map(|(w, _, g)| w * (g - top).exp()).sum();
                    let mean = |f: fn(f64) -> f64| {
                        all.iter().map(|(w, v, g)| w * (g - top).exp() * f(*v)).sum::<f64>() / sum
                    };
                    let repeats = if ratio == 4 { 1 } else { rows.len() + 1 };
                    pooled.values[c] = mean(|v| v);
                    pooled.bound[c] = 2.0 * repeats as f64 * (top - low + 16.0) * EPS * mean(f64::abs);
                }
                let angles = &table[p / ratio * ratio * ROPE_DIM..][..ROPE_DIM];
                let slot = usize::try_from(self.row_slots[t]).unwrap();
                let rows_of = self.book.page_rows;
                finished.push(Finished {
                    place: (slot / rows_of, slot % rows_of),
                    exact: rope_off(&norm_off(&pooled, &self.norm, RMS_EPS), angles),
                });
            }
        }
        finished
    }

    /// Gates and values are stored as they are for ratio 4, bit for bit; the running sums of ratio 128 are compared.
    pub(crate) fn judge_state(&self, runs: &Runs, state: BufferId) {
        if self.layout.ratio == 4 {
            return runs.agree_exactly(state);
        }
        let width = self.layout.width;
        for (request, rows) in self.runs() {
            let Some(&(_, p)) = rows.last() else { continue };
            let range = self.state_range(request, p);
            let read = |part: usize| {
                let range = range.start + part * width..range.start + (part + 1) * width;
                move |found: &Found| -> Vec<f64> {
                    found.floats(state)[range.clone()].iter().map(|&v| f64::from(v)).collect()
                }
            };
            let sums = read(1)(runs.oracle());
            // The mean |value| is at most 3 here, so |acc| has a magnitude of 3 sum.
            let relative = 2.0 * (rows.len() + 1) as f64 * 24.0 * EPS;
            runs.agree(read(0), &vec![0.0; width], 0.0);
            runs.agree(read(1), &sums.iter().map(|s| relative * s).collect::<Vec<_>>(), 2.0 * EPS);
            runs.agree(read(2), &sums.iter().map(|s| 3.0 * relative * s).collect::<Vec<_>>(), 2.0 * EPS);
        }
    }

    pub(crate) fn build(&self, format: KvFormat, trained: bool) -> (Case, BufferId, BufferId) {
        let mut case = Case::new();
        let (pages, page_rows) = (self.book.pages, self.book.page_rows);
        let pool = case.pool("pool", vec![0; pages * format.page_bytes(page_rows)]);
        case.unread(pool, 0..pages * format.page_bytes(page_rows));
        for row in self.finished() {
            kv_bytes(format, page_rows, row.place).into_iter().for_each(|r| case.writes(pool, r));
        }
        let pooling = self.pooling(&mut case, pool);
        let state = pooling.state;
        case.op(Op::Compress(Compress { pooling, page_rows, format, trained }));
        (case, state, pool)
    }

    fn judge(&self, format: KvFormat, trained: bool) {
        let (case, state, pool) = self.build(format, trained);
        let runs = case.run();
        self.judge_state(&runs, state);
        for Finished { place, exact } in self.finished() {
            runs.agree_rounded(
                |found| kv_row(format, self.book.page_rows, found.bytes(pool), place),
                &exact,
                trained || format != KvFormat::F32,
                |i, v| kv_step(format, trained, &exact.values, i, v),
            );
        }
    }
}

pub(crate) const fn layout(ratio: usize) -> StateLayout {
    StateLayout { ratio, width: HEAD_DIM }
}

#[test]
fn the_first_row_of_ratio_4_has_no_previous_half() {
    let setup = Setup::drawn(&mut Draw::new(1), layout(4), &[0..9, 3..12]);
    assert_eq!(setup.finished().len(), 2 + 3);
    setup.judge(KvFormat::F32, false);
}

#[test]
fn a_row_at_a_block_boundary_reads_the_other_half_of_the_ring() {
    let setup = Setup::drawn(&mut Draw::new(2), layout(4), &[256..261, 511..513, 255..256]);
    setup.judge(KvFormat::F32, false);
}

#[test]
fn a_token_at_a_multiple_of_128_starts_anew() {
    let setup = Setup::drawn(&mut Draw::new(3), layout(128), &[0..1, 128..130, 127..129, 512..513]);
    setup.judge(KvFormat::F32, false);
}

#[test]
fn a_request_without_a_state_slot_leaves_no_trace() {
    for ratio in [4, 128] {
        let mut setup =
            Setup::drawn(&mut Draw::new(4), layout(ratio), &[127..128, 127..128, 127..128, 127..128]);
        setup.slots[0] = -1;
        setup.slots[1] = i32::try_from(setup.num_slots).unwrap();
        setup.slots[2] = i32::MAX;
        assert_eq!(setup.finished().len(), 1);
        setup.judge(KvFormat::Fp8, true);
    }
}

/// A block at once and its tokens one by one leave the same bytes, row by row and in the state.
#[test]
fn prefill_and_decode_are_the_same_bits() {
    for (ratio, range) in [(4, 254..283), (128, 100..131)] {
        let setup = Setup::drawn(&mut Draw::new(5), layout(ratio), &[range]);
        let (block, block_state, block_pool) = setup.build(KvFormat::Fp8, true);
        let block = block.run();
        for (e, whole) in block.all.iter().enumerate() {
            let mut state = setup.state.clone();
            let mut places = setup.finished().into_iter();
            for t in 0..setup.positions.len() {
                let single = setup.single(t, state.clone());
                let (case, id, pool) = single.build(KvFormat::Fp8, true);
                let found = &case.run().all[e];
                let after = found.floats(id);
                let range = single.state_range(0, usize::try_from(setup.positions[t]).unwrap());
                state[range.clone()].copy_from_slice(&after[range]);
                if setup.row_slots[t] >= 0 {
                    let place = places.next().unwrap().place;
                    for bytes in kv_bytes(KvFormat::Fp8, setup.book.page_rows, place) {
                        assert_eq!(
                            found.bytes(pool)[bytes.clone()],
                            whole.bytes(block_pool)[bytes],
                            "token {t}"
                        );
                    }
                }
            }
            let last = usize::try_from(*setup.positions.last().unwrap()).unwrap();
            let (after, range) = (whole.floats(block_state), setup.state_range(0, last));
            assert_eq!(after[range.clone()], state[range]);
        }
    }
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn is_the_oracles(
        seed: u64, ratio in prop::sample::select(vec![4usize, 128]), requests in 1usize..4, trained: bool,
        format in prop::sample::select(vec![KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32]),
    ) {
        let mut draw = Draw::new(seed);
        let ranges: Vec<Range<usize>> = (0..requests).map(|_| {
            let start = draw.below(POSITIONS - 140);
            start..start + 1 + draw.below(if ratio == 4 { 12 } else { 130 })
        }).collect();
        Setup::drawn(&mut draw, layout(ratio), &ranges).judge(format, trained);
    }
}
