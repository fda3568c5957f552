//! `index_logits` against the oracle, over shuffled pages; what is not visible is neither read nor written.

use std::ops::Range;

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{INDEX_DIM, IndexLogits, IndexSelect, Op, PAGE_ROWS, Paged};
use proptest::prelude::*;

use crate::support::{Book, Case, Draw, Dtype, EPS, Value, config, index_bytes};

pub(crate) const FORMATS: [IndexFormat; 4] =
    [IndexFormat::F32, IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4];

/// Requests of one token each, that see `visible[r]` rows.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    format: IndexFormat,
    heads: usize,
    positions: Vec<i32>,
    /// `[requests][heads][128]`
    q: Vec<f32>,
    weights: Vec<f32>,
    /// `[requests][rows][128]`
    keys: Vec<Vec<[f32; INDEX_DIM]>>,
    pub(crate) book: Book,
    /// Overrides of the page table: request, page number, id.
    pub(crate) broken: Vec<(usize, usize, i32)>,
}

pub(crate) struct Built {
    pub(crate) case: Case,
    /// The logits, or the choice.
    output: Value,
}

impl Setup {
    pub(crate) fn drawn(
        draw: &mut Draw,
        format: IndexFormat,
        heads: usize,
        positions: &[i32],
        width: usize,
    ) -> Self {
        let requests = positions.len();
        let mut key = || -> [f32; INDEX_DIM] { std::array::from_fn(|_| draw.normal(1.0)) };
        let rows = |p: i32| usize::try_from(p + 1).unwrap_or(0) / 4;
        let keys = positions.iter().map(|&p| (0..rows(p).min(width * PAGE_ROWS)).map(|_| key()).collect());
        let keys: Vec<Vec<_>> = keys.collect();
        Self {
            format,
            heads,
            positions: positions.to_vec(),
            q: draw.normals(requests * heads * INDEX_DIM, 1.0),
            weights: draw.normals(requests * heads, 1.0),
            keys,
            book: Book::new(draw, requests, width, PAGE_ROWS),
            broken: Vec::new(),
        }
    }

    fn encoded(&self, v: &[f32; INDEX_DIM]) -> (Vec<u8>, Vec<u8>) {
        let (mut codes, mut scales) = (vec![0; self.format.code_bytes()], vec![0; self.format.scale_bytes()]);
        self.format.encode(v, &mut codes, &mut scales);
        (codes, scales)
    }

    fn decoded(&self, v: &[f32; INDEX_DIM]) -> [f32; INDEX_DIM] {
        let (codes, scales) = self.encoded(v);
        let mut out = [0.0; INDEX_DIM];
        self.format.decode(&codes, &scales, &mut out);
        out
    }

    fn query(&self, i: usize) -> [f32; INDEX_DIM] {
        self.q[i * INDEX_DIM..(i + 1) * INDEX_DIM].try_into().unwrap()
    }

    fn columns(&self, t: usize) -> Range<usize> {
        let width = self.book.width * PAGE_ROWS;
        t * width..t * width + self.keys[t].len()
    }

    fn masked(&self, t: usize, row: usize) -> bool {
        self.broken.iter().any(|&(r, page, _)| (r, page) == (t, row / PAGE_ROWS))
    }

    /// `index_logits`, or `index_select` of so many rows.
    pub(crate) fn build(&self, select: Option<usize>) -> Built {
        let (mut case, rows) = (Case::new(), self.positions.len());
        let tokens = case.tokens(1, &self.positions);
        let heads: Vec<_> = (0..rows * self.heads).map(|i| self.encoded(&self.query(i))).collect();
        let codes = case.codes("codes", &heads.iter().flat_map(|h| h.0.clone()).collect::<Vec<_>>());
        let scales: Vec<u8> = heads.iter().flat_map(|h| h.1.clone()).collect();
        let scales = (!scales.is_empty()).then(|| case.codes("scales", &scales));
        let weights = case.real("weights", Dtype::F32, &self.weights);
        let mut table = self.book.table().to_vec();
        self.broken.iter().for_each(|&(r, page, id)| table[r * self.book.width + page] = id);
        let table = case.ints("table", &table);
        let page_bytes = self.format.page_bytes(PAGE_ROWS);
        let mut bytes = vec![0; self.book.pages * page_bytes];
        let mut readable = Vec::new();
        let all_taken = |keys: &[_]| select.is_some_and(|k| keys.len() <= k);
        for (t, keys) in self.keys.iter().enumerate() {
            if all_taken(keys) {
                continue;
            }
            for (r, key) in keys.iter().enumerate().filter(|(r, _)| !self.masked(t, *r)) {
                let place = self.book.find(t, r);
                self.format.encode_row(
                    key,
                    &mut bytes[place.0 * page_bytes..][..page_bytes],
                    place.1,
                    PAGE_ROWS,
                );
                readable.extend(index_bytes(self.format, PAGE_ROWS, place));
            }
        }
        let pool = case.pool("pool", bytes);
        case.unread_except(pool, &readable);
        let keys =
            Paged { pool, table, width: self.book.width, page_rows: PAGE_ROWS, pages: self.book.pages };
        let scale = 1.0 / ((INDEX_DIM * self.heads) as f32).sqrt();
        let (heads, format) = (self.heads, self.format);
        let output = if let Some(k) = select {
            let selected = case.out("selected", Dtype::I32, rows * k);
            let op = IndexSelect { tokens, codes, scales, weights, keys, selected, k, heads, format, scale };
            case.op(Op::IndexSelect(op));
            selected
        } else {
            let logits = case.partial("logits", Dtype::F32, rows * keys.max_rows());
            (0..rows).for_each(|t| case.writes_elements(&logits, self.columns(t)));
            let op = IndexLogits { tokens, codes, scales, weights, keys, logits, heads, format, scale };
            case.op(Op::IndexLogits(op));
            logits
        };
        Built { case, output }
    }

    /// What every executor's `index_select` chooses, `[executor][request][k]`.
    pub(crate) fn choices(&self, k: usize) -> Vec<Vec<Vec<i32>>> {
        let built = self.build(Some(k));
        let rows = |found: &crate::support::Found| {
            found.ints(&built.output).chunks(k).map(<[i32]>::to_vec).collect()
        };
        built.case.run().all.iter().map(rows).collect()
    }

    /// What one executor's `index_select` chooses, and its scores.
    #[cfg(feature = "cuda")]
    pub(crate) fn chosen_on(&self, executor: &crate::support::cuda::Cuda, k: usize) -> (Vec<i32>, Vec<f64>) {
        let (select, score) = (self.build(Some(k)), self.build(None));
        let found = score.case.run_on(executor);
        let scores = found.real(&score.output)[self.columns(0)].to_vec();
        (select.case.run_on(executor).ints(&select.output)[..k].to_vec(), scores)
    }

    /// A dot product of 128 terms is off by 128 eps sum |q k| at most, ReLU by no more; the sum over heads and the two
    /// products add (heads + 3) eps.
    fn bound(&self, t: usize, row: usize) -> f64 {
        if self.masked(t, row) {
            return 0.0;
        }
        let key = self.decoded(&self.keys[t][row]);
        let scale = 1.0 / ((INDEX_DIM * self.heads) as f64).sqrt();
        let head = |h: usize| {
            let q = self.decoded(&self.query(t * self.heads + h));
            let magnitude: f64 = q.iter().zip(&key).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).sum();
            f64::from(self.weights[t * self.heads + h]).abs() * magnitude
        };
        (INDEX_DIM + self.heads + 3) as f64 * EPS * scale * (0..self.heads).map(head).sum::<f64>()
    }

    /// The scores of every executor, `[executor][request][row]`.
    pub(crate) fn scores(&self) -> Vec<Vec<Vec<f64>>> {
        let built = self.build(None);
        let runs = built.case.run();
        let read = |t: usize| {
            let columns = self.columns(t);
            move |found: &crate::support::Found| found.real(&built.output)[columns.clone()].to_vec()
        };
        for t in (0..self.positions.len()).filter(|&t| !self.keys[t].is_empty()) {
            let bound: Vec<f64> = (0..self.keys[t].len()).map(|r| self.bound(t, r)).collect();
            if (0..self.keys[t].len()).any(|r| !self.masked(t, r)) && bound.iter().all(|b| b.is_finite()) {
                runs.agree(read(t), &bound, 2.0 * EPS);
            }
        }
        runs.all.iter().map(|found| (0..self.positions.len()).map(|t| read(t)(found)).collect()).collect()
    }
}

#[test]
fn l01_short_requests_see_no_row_and_touch_no_page() {
    let positions: Vec<i32> = (0..32).map(|i| i % 3).collect();
    let scores = Setup::drawn(&mut Draw::new(1), IndexFormat::Fp8, 2, &positions, 2).scores();
    assert!(scores.iter().flatten().all(Vec::is_empty));
}

#[test]
fn l02_scales_belong_to_their_rows() {
    for format in FORMATS {
        let mut setup = Setup::drawn(&mut Draw::new(2), format, 1, &[79], 1);
        setup.q = vec![1.0; INDEX_DIM];
        setup.weights = vec![1.0];
        setup.keys[0] = (0..20).map(|t| [2f32.powi(t); INDEX_DIM]).collect();
        for scores in setup.scores() {
            for pair in scores[0].windows(2) {
                assert_eq!(pair[1] / pair[0], 2.0, "{format:?}");
            }
        }
    }
}

#[test]
fn l13_a_bad_key_row_changes_no_other_row() {
    for format in FORMATS {
        let clean = Setup::drawn(&mut Draw::new(13), format, 3, &[4 * 70 - 1], 2);
        let mut bad = clean.clone();
        bad.keys[0][3] = [0.0; INDEX_DIM];
        bad.keys[0][9] = [1e-30; INDEX_DIM];
        bad.keys[0][20] = [1e30; INDEX_DIM];
        bad.keys[0][40][5] = f32::NAN;
        bad.keys[0][66][7] = f32::INFINITY;
        for (clean, bad) in clean.scores().iter().zip(bad.scores()) {
            for r in (0..70).filter(|r| ![3, 9, 20, 40, 66].contains(r)) {
                assert_eq!(clean[0][r], bad[0][r], "{format:?} row {r}");
            }
            assert_eq!(bad[0][3], 0.0, "{format:?}: a zero row scores zero");
        }
    }
}

#[test]
fn t16_rows_are_found_by_page_and_offset_around_page_boundaries() {
    for rows in [63, 64, 65, 127, 128] {
        let setup = Setup::drawn(&mut Draw::new(rows as u64), IndexFormat::F32, 1, &[rows * 4 - 1], 3);
        setup.scores();
    }
}

#[test]
fn l03_page_ids_out_of_range_are_masked() {
    let mut setup = Setup::drawn(&mut Draw::new(3), IndexFormat::Bf16, 2, &[4 * 320 - 1], 5);
    let pages = i32::try_from(setup.book.pages).unwrap();
    setup.broken = vec![(0, 0, pages), (0, 1, -1), (0, 3, i32::MAX), (0, 4, i32::MIN)];
    for scores in setup.scores() {
        for (r, score) in scores[0].iter().enumerate() {
            assert_eq!(*score == f64::NEG_INFINITY, r / PAGE_ROWS != 2, "row {r}: {score}");
        }
    }
}

/// As many heads as the kernels take, over several tiles, and the numbers of heads around a matrix column's eight.
#[test]
fn heads_of_every_number_over_many_rows() {
    for format in FORMATS {
        for heads in [7, 8, 9, 64] {
            Setup::drawn(&mut Draw::new(64), format, heads, &[4 * 200 - 1, 4 * 70 + 1], 4).scores();
        }
    }
}

/// More requests than a block has threads, most of them short: each finds its own rows.
#[test]
fn many_requests_of_all_lengths_share_the_work() {
    let positions: Vec<i32> =
        (0..150).map(|i| if i % 40 == 7 { 4 * 130 } else { (i * 37 % 90) - 20 }).map(|p| p.max(-1)).collect();
    Setup::drawn(&mut Draw::new(150), IndexFormat::Fp8, 16, &positions, 3).scores();
}

proptest! {
    #![proptest_config(config(16))]

    /// Where the pages lie, and which other requests are in the batch, changes no bit.
    #[test]
    fn is_the_oracles_wherever_the_pages_lie(
        seed: u64, heads in 1usize..6, requests in 1usize..4, format in prop::sample::select(FORMATS.to_vec()),
    ) {
        let mut draw = Draw::new(seed);
        let positions: Vec<i32> = (0..requests).map(|_| i32::try_from(draw.below(4 * 150)).unwrap() - 1).collect();
        let setup = Setup::drawn(&mut draw, format, heads, &positions, 2);
        let scores = setup.scores();
        let moved = Setup { book: Book::new(&mut draw, requests, 2, PAGE_ROWS), ..setup.clone() };
        prop_assert_eq!(&moved.scores(), &scores);
        let last = requests - 1;
        let alone = Setup {
            positions: vec![positions[last]],
            q: setup.q[last * heads * INDEX_DIM..].to_vec(),
            weights: setup.weights[last * heads..].to_vec(),
            keys: vec![setup.keys[last].clone()],
            book: Book::new(&mut draw, 1, 2, PAGE_ROWS),
            ..setup
        };
        for (one, all) in alone.scores().iter().zip(&scores) {
            prop_assert_eq!(&one[0], &all[last]);
        }
    }
}
