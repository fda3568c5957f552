//! `attention` against the oracle: exactly the rows that a query sees, wherever they lie.

use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{Attention, Compressed, HEAD_DIM, Op, PAGE_ROWS, Paged, ROPE_DIM, WINDOW};
use proptest::prelude::*;

use crate::support::{
    Book, Case, Draw, Dtype, EPS, Off, Value, config, kv_bytes, kv_row, rope_off, rope_table,
};

#[cfg(feature = "cuda")]
mod kernels;

const POSITIONS: usize = 700;
const SCALE: f32 = 0.044_194_174;

/// The compressed rows of a test.
#[derive(Clone, Debug, PartialEq)]
enum Extra {
    None,
    /// The selection of every token row, `[T][k]`.
    Selected(Vec<Vec<i32>>),
    All,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    format: KvFormat,
    pub(crate) dtype: Dtype,
    heads: usize,
    per_request: usize,
    positions: Vec<i32>,
    q: Vec<f32>,
    sink: Vec<f32>,
    window: Book,
    rows: Book,
    extra: Extra,
    /// Seeds of the rows' contents, so that they do not depend on where the rows lie.
    content: u64,
    /// Page-table entries that name no page: window or rows, request, page number, id.
    broken: Vec<(bool, usize, usize, i32)>,
}

pub(crate) struct Built {
    pub(crate) case: Case,
    out: Value,
}

impl Setup {
    pub(crate) fn drawn(
        draw: &mut Draw,
        format: KvFormat,
        heads: usize,
        per_request: usize,
        positions: &[i32],
        ratio: Option<usize>,
    ) -> Self {
        let requests = positions.len() / per_request;
        let page_rows = if ratio == Some(128) { 2 } else { PAGE_ROWS };
        let mut setup = Self {
            format,
            dtype: Dtype::F32,
            heads,
            per_request,
            positions: positions.to_vec(),
            q: draw.exact(positions.len() * heads * HEAD_DIM, 1.0),
            sink: draw.normals(heads, 1.0),
            window: Book::new(draw, requests, POSITIONS.div_ceil(PAGE_ROWS), PAGE_ROWS),
            rows: Book::new(draw, requests, POSITIONS.div_ceil(256), page_rows),
            extra: Extra::None,
            content: draw.below(1 << 30) as u64,
            broken: Vec::new(),
        };
        setup.extra = match ratio {
            Some(4) => Extra::Selected(positions.iter().map(|&p| selection(draw, p)).collect()),
            Some(_) => Extra::All,
            None => Extra::None,
        };
        setup
    }

    /// The bytes of a row depend on its request and number alone.
    fn content(&self, window: bool, request: usize, row: usize) -> [f32; HEAD_DIM] {
        let mut draw = Draw::new(self.content ^ ((request * 4096 + row) * 2 + usize::from(window)) as u64);
        std::array::from_fn(|_| draw.normal(1.0))
    }

    fn book(&self, window: bool) -> &Book {
        if window { &self.window } else { &self.rows }
    }

    fn masked(&self, window: bool, request: usize, row: usize) -> bool {
        let page = row / self.book(window).page_rows;
        page >= self.book(window).width
            || self.broken.iter().any(|&(w, r, p, _)| (w, r, p) == (window, request, page))
    }

    /// The rows that query `t` sees: window first.
    fn visible(&self, t: usize) -> Vec<(bool, usize)> {
        let (Ok(p), request) = (usize::try_from(self.positions[t]), t / self.per_request) else {
            return vec![];
        };
        let window = ((p + 1).saturating_sub(WINDOW)..=p).map(|r| (true, r));
        let extra: Vec<usize> = match &self.extra {
            Extra::None => vec![],
            Extra::Selected(all) => {
                let chosen = all[t].iter().filter_map(|&r| usize::try_from(r).ok());
                chosen.filter(|&r| r < (p + 1) / 4).collect()
            }
            Extra::All => (0..(p + 1) / 128).collect(),
        };
        let all = window.chain(extra.into_iter().map(|r| (false, r)));
        all.filter(|&(w, r)| !self.masked(w, request, r)).collect()
    }

    /// A pool that holds every visible row, and is readable there alone.
    fn paged(&self, case: &mut Case, window: bool) -> Paged {
        let book = self.book(window);
        let page_bytes = self.format.page_bytes(book.page_rows);
        let (mut bytes, mut readable) = (vec![0; book.pages * page_bytes], Vec::new());
        let mut done = std::collections::BTreeSet::new();
        for t in 0..self.positions.len() {
            let request = t / self.per_request;
            for (_, row) in self.visible(t).into_iter().filter(|(w, _)| *w == window) {
                if done.insert((request, row)) {
                    let place = book.find(request, row);
                    let page = &mut bytes[place.0 * page_bytes..][..page_bytes];
                    self.format.encode_row(
                        &self.content(window, request, row),
                        page,
                        place.1,
                        book.page_rows,
                    );
                    readable.extend(kv_bytes(self.format, book.page_rows, place));
                }
            }
        }
        let mut table = book.table().to_vec();
        for &(_, r, page, id) in self.broken.iter().filter(|b| b.0 == window) {
            table[r * book.width + page] = id;
        }
        let table = case.ints("table", &table);
        let pool = case.pool("pool", bytes);
        case.unread_except(pool, &readable);
        Paged { pool, table, width: book.width, page_rows: book.page_rows, pages: book.pages }
    }

    pub(crate) fn build(&self) -> Built {
        let (mut case, heads, rows) = (Case::new(), self.heads, self.positions.len());
        let tokens = case.tokens(self.per_request, &self.positions);
        let q = case.real("q", self.dtype, &self.q);
        for t in (0..rows).filter(|&t| self.positions[t] < 0) {
            case.unread_elements(&q, t * heads * HEAD_DIM..(t + 1) * heads * HEAD_DIM);
        }
        let window = self.paged(&mut case, true);
        let compressed = match &self.extra {
            Extra::None => Compressed::None,
            Extra::All => Compressed::All { rows: self.paged(&mut case, false) },
            Extra::Selected(all) => Compressed::Selected {
                rows: self.paged(&mut case, false),
                selected: case.ints("selected", &all.concat()),
                k: all[0].len(),
            },
        };
        let sink = case.vector("sink", &self.sink);
        let rope = case.rope(POSITIONS);
        let out = case.out("out", self.dtype, q.len);
        let format = self.format;
        let op = Attention {
            tokens,
            q,
            window,
            compressed,
            sink,
            rope,
            out,
            heads,
            format,
            max_positions: POSITIONS,
            scale: SCALE,
        };
        case.op(Op::Attention(op));
        Built { case, out }
    }

    /// The exact head and its bound. A score is off by 514 eps scale sum |q k|; an exponential by that, by the rounding of
    /// its argument and by 16 more, in numerator and denominator; summing N rows adds N eps. A weight may be rounded to the
    /// activation type.
    fn exact(&self, t: usize, h: usize) -> Off {
        let mut o = Off::exact(vec![0.0; HEAD_DIM]);
        let Ok(position) = usize::try_from(self.positions[t]) else { return o };
        let q = &self.q[(t * self.heads + h) * HEAD_DIM..][..HEAD_DIM];
        let mut scores = Vec::new();
        for (window, row) in self.visible(t) {
            let page_rows = self.book(window).page_rows;
            let mut page = vec![0; self.format.page_bytes(page_rows)];
            self.format.encode_row(&self.content(window, t / self.per_request, row), &mut page, 0, page_rows);
            let key = kv_row(self.format, page_rows, &page, (0, 0));
            let products = || q.iter().zip(&key).map(|(a, b)| f64::from(*a) * b * f64::from(SCALE));
            let (score, magnitude): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
            scores.push((score, 514.0 * EPS * magnitude, key));
        }
        let sink = f64::from(self.sink[h]);
        let top = scores.iter().fold(sink, |m, s| m.max(s.0));
        let low = scores.iter().fold(sink, |m, s| m.min(s.0));
        let total: f64 = (sink - top).exp() + scores.iter().map(|s| (s.0 - top).exp()).sum::<f64>();
        let worst = scores.iter().fold(0.0, |m: f64, s| m.max(s.1));
        let relative = 2.0 * worst
            + (2.0 * (top - low + 16.0) + scores.len() as f64) * EPS
            + if self.dtype == Dtype::Bf16 { 1.0 / 512.0 } else { 0.0 };
        for (score, _, key) in &scores {
            let p = (score - top).exp() / total;
            for (i, v) in key.iter().enumerate() {
                o.values[i] += p * v;
                o.bound[i] += p * v.abs() * relative;
            }
        }
        // The inverse rotation is the rotation by the negative angle.
        let table = rope_table(POSITIONS);
        let row = &table[position.min(POSITIONS - 1) * ROPE_DIM..][..ROPE_DIM];
        let angles: Vec<f32> =
            row.iter().enumerate().map(|(i, v)| if i % 2 == 1 { -v } else { *v }).collect();
        rope_off(&o, &angles)
    }

    /// Judges the run by exact arithmetic and by the oracle; gives what every executor made of it.
    fn judge(&self) -> Vec<Vec<f64>> {
        let built = self.build();
        let runs = built.case.run();
        let heads = (0..self.positions.len()).flat_map(|t| (0..self.heads).map(move |h| (t, h)));
        let exact: Vec<Off> = heads.map(|(t, h)| self.exact(t, h)).collect();
        let values: Vec<f64> = exact.iter().flat_map(|o| o.values.clone()).collect();
        if values.iter().any(|v| *v != 0.0) {
            let bound: Vec<f64> = exact.iter().flat_map(|o| o.bound.clone()).collect();
            runs.agree_within(&built.out, &bound);
            if self.dtype == Dtype::F32 {
                let oracle = runs.oracle().real(&built.out);
                let apart =
                    oracle.iter().zip(&values).position(|(a, b)| (a - b).abs() > 1e-6 * (1.0 + b.abs()));
                assert_eq!(apart, None, "the oracle is not the formula");
            }
        }
        runs.all.iter().map(|found| found.real(&built.out)).collect()
    }

    /// The first request alone, in pages elsewhere.
    fn alone(&self, draw: &mut Draw) -> Self {
        let extra = match &self.extra {
            Extra::Selected(all) => Extra::Selected(all[..self.per_request].to_vec()),
            other => other.clone(),
        };
        Self {
            positions: self.positions[..self.per_request].to_vec(),
            q: self.q[..self.per_request * self.heads * HEAD_DIM].to_vec(),
            window: Book::new(draw, 1, self.window.width, PAGE_ROWS),
            rows: Book::new(draw, 1, self.rows.width, self.rows.page_rows),
            extra,
            broken: self.broken.iter().filter(|b| b.1 == 0).copied().collect(),
            ..self.clone()
        }
    }
}

/// Some ascending visible rows, then -1; k is 24.
fn selection(draw: &mut Draw, position: i32) -> Vec<i32> {
    let visible = usize::try_from(position + 1).unwrap_or(0) / 4;
    let mut chosen: Vec<i32> =
        draw.permutation(visible).iter().take(20).map(|&r| i32::try_from(r).unwrap()).collect();
    chosen.sort_unstable();
    chosen.resize(24, -1);
    chosen
}

#[test]
fn one_row_and_the_sink_share_the_softmax() {
    // A query of zeros scores 0, the sink ln 3: the row weighs 1 / 4. At position 0 nothing turns.
    let mut setup = Setup::drawn(&mut Draw::new(1), KvFormat::F32, 1, 1, &[0], None);
    setup.q.fill(0.0);
    setup.sink = vec![3f32.ln()];
    let row = setup.content(true, 0, 0);
    for out in setup.judge() {
        assert!(out.iter().zip(row).all(|(o, v)| (o - f64::from(v) / 4.0).abs() < 1e-6));
    }
}

#[test]
fn a_window_holds_128_rows_and_slides() {
    for position in [126, 127, 128, 129, 191, 500] {
        Setup::drawn(&mut Draw::new(2), KvFormat::F32, 2, 1, &[position], None).judge();
    }
}

#[test]
fn a03_compressed_rows_add_nothing_before_the_first_is_complete() {
    for ratio in [4, 128] {
        let setup = Setup::drawn(&mut Draw::new(3), KvFormat::Bf16, 2, 1, &[0, 1, 2], Some(ratio));
        let without = Setup { extra: Extra::None, ..setup.clone() };
        assert_eq!(setup.judge(), without.judge());
    }
}

#[test]
fn l10_indices_at_and_beyond_the_length_are_skipped() {
    let mut setup = Setup::drawn(&mut Draw::new(4), KvFormat::Fp8, 2, 1, &[40], Some(4));
    setup.extra = Extra::Selected(vec![vec![0, 3, 9, -1]]);
    let want = setup.judge();
    setup.extra = Extra::Selected(vec![vec![0, 3, 9, 10, 11, i32::MAX, i32::MIN, -1]]);
    assert_eq!(setup.judge(), want);
}

#[test]
fn a04_padded_rows_are_zero_and_live_rows_do_not_see_the_null_page() {
    // Page 0 belongs to no request here, so the harness fills it with NaN.
    let positions = [5, 300, 127, 128, 640, -1, -1, -1];
    for ratio in [None, Some(4), Some(128)] {
        let setup = Setup::drawn(&mut Draw::new(5), KvFormat::Fp8, 2, 1, &positions, ratio);
        for out in setup.judge() {
            assert!(out[5 * 2 * HEAD_DIM..].iter().all(|v| *v == 0.0));
            assert!(out.iter().all(|v| v.is_finite()));
        }
    }
}

#[test]
fn a08_no_visible_row_gives_zero_beside_a_long_request() {
    let mut setup = Setup::drawn(&mut Draw::new(8), KvFormat::Bf16, 3, 1, &[0, 699], None);
    setup.broken = vec![(true, 0, 0, -1)];
    for out in setup.judge() {
        let (none, long) = out.split_at(3 * HEAD_DIM);
        assert!(none.iter().all(|v| *v == 0.0) && long.iter().any(|v| *v != 0.0));
    }
}

#[test]
fn a15_page_ids_out_of_range_are_never_dereferenced() {
    let mut setup = Setup::drawn(&mut Draw::new(15), KvFormat::F32, 2, 1, &[600], Some(4));
    setup.extra = Extra::Selected(vec![vec![0, 70, 130, 149]]);
    let (window, rows) = (setup.window.pages as i32, setup.rows.pages as i32);
    // The window is 473..=600: pages 7, 8 and 9.
    setup.broken = vec![(true, 0, 7, window), (true, 0, 9, i32::MAX), (false, 0, 0, rows), (false, 0, 2, -1)];
    let seen = setup.visible(0);
    assert_eq!(seen.len(), 64 + 1);
    setup.judge();
}

#[test]
fn a16_all_indices_absent_and_only_the_sink_left() {
    let mut setup = Setup::drawn(&mut Draw::new(16), KvFormat::F32, 2, 1, &[63], Some(4));
    setup.extra = Extra::Selected(vec![vec![-1; 8]]);
    setup.broken = vec![(true, 0, 0, i32::MIN)];
    for out in setup.judge() {
        assert!(out.iter().all(|v| *v == 0.0));
    }
}

proptest! {
    #![proptest_config(config(16))]

    #[test]
    fn is_the_oracles(
        seed: u64, heads in 1usize..5, per_request in 1usize..4, requests in 1usize..4, bf16: bool,
        format in prop::sample::select(vec![KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32]),
        ratio in prop::sample::select(vec![None, Some(4), Some(128)]),
    ) {
        let mut draw = Draw::new(seed);
        let positions: Vec<i32> = (0..requests).flat_map(|_| {
            let (start, live) = (draw.below(POSITIONS - 4), 1 + draw.below(per_request));
            (0..per_request).map(move |i| if i < live { i32::try_from(start + i).unwrap() } else { -1 })
        }).collect();
        let mut setup = Setup::drawn(&mut draw, format, heads, per_request, &positions, ratio);
        if bf16 {
            setup.dtype = Dtype::Bf16;
        }
        let whole = setup.judge();
        // Elsewhere in memory, and alone, a request has the same bits.
        let moved = Setup {
            window: Book::new(&mut draw, requests, setup.window.width, PAGE_ROWS),
            rows: Book::new(&mut draw, requests, setup.rows.width, setup.rows.page_rows),
            ..setup.clone()
        };
        prop_assert_eq!(&moved.judge(), &whole);
        for (one, all) in setup.alone(&mut draw).judge().iter().zip(&whole) {
            prop_assert_eq!(&one[..], &all[..one.len()]);
        }
    }
}
