//! Pools whose pages lie in shuffled order, as a cache that has run for a while leaves them.

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
