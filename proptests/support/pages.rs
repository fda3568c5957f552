//! Pools whose pages lie in shuffled order, as a cache that has run for a while leaves them.

use std::ops::Range;

use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{HEAD_DIM, INDEX_DIM};

use super::draw::Draw;

/// Page numbers of several requests laid out over the pages of one pool. Page 0 belongs to nobody.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    pub(crate) pages: usize,
    pub(crate) page_rows: usize,
    pub(crate) width: usize,
    table: Vec<i32>,
}

impl Book {
    /// `width` pages for each of `requests`, and some pages that nobody owns.
    pub(crate) fn new(draw: &mut Draw, requests: usize, width: usize, page_rows: usize) -> Self {
        let pages = 1 + requests * width + 2;
        let order = draw.permutation(pages - 1);
        let table = order[..requests * width].iter().map(|&p| i32::try_from(p + 1).unwrap()).collect();
        Self { pages, page_rows, width, table }
    }

    pub(crate) fn table(&self) -> &[i32] {
        &self.table
    }

    /// The page and place of a row.
    pub(crate) fn find(&self, request: usize, row: usize) -> (usize, usize) {
        let page = self.table[request * self.width + row / self.page_rows];
        (usize::try_from(page).unwrap(), row % self.page_rows)
    }

    /// The slot of a row, as stores take it.
    pub(crate) fn slot(&self, request: usize, row: usize) -> i64 {
        let (page, place) = self.find(request, row);
        i64::try_from(page * self.page_rows + place).unwrap()
    }
}

/// A rotation table whose angles differ everywhere: `[positions, 32, 2]`.
pub(crate) fn rope_table(positions: usize) -> Vec<f32> {
    flashlane::format::rope::RopeParams { theta: 10_000.0, yarn: None }.table(positions)
}

/// The bytes of a key/value row within its pool.
pub(crate) fn kv_bytes(
    format: KvFormat,
    page_rows: usize,
    (page, place): (usize, usize),
) -> [Range<usize>; 2] {
    let (data, scales) = format.row_ranges(place, page_rows);
    [data, scales].map(|r| moved(r, page * format.page_bytes(page_rows)))
}

/// The bytes of an index key within its pool.
pub(crate) fn index_bytes(
    format: IndexFormat,
    page_rows: usize,
    (page, place): (usize, usize),
) -> [Range<usize>; 2] {
    let (codes, scales) = format.row_ranges(place, page_rows);
    [codes, scales].map(|r| moved(r, page * format.page_bytes(page_rows)))
}

fn moved(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// A stored key/value row as numbers.
pub(crate) fn kv_row(
    format: KvFormat,
    page_rows: usize,
    pool: &[u8],
    (page, place): (usize, usize),
) -> Vec<f64> {
    let bytes = format.page_bytes(page_rows);
    let mut out = [0.0; HEAD_DIM];
    format.decode_row(&pool[page * bytes..(page + 1) * bytes], place, page_rows, &mut out);
    out.iter().map(|&v| f64::from(v)).collect()
}

/// A stored index key as numbers.
pub(crate) fn index_row(
    format: IndexFormat,
    page_rows: usize,
    pool: &[u8],
    (page, place): (usize, usize),
) -> Vec<f64> {
    let bytes = format.page_bytes(page_rows);
    let mut out = [0.0; INDEX_DIM];
    format.decode_row(&pool[page * bytes..(page + 1) * bytes], place, page_rows, &mut out);
    out.iter().map(|&v| f64::from(v)).collect()
}
