//! Pool rows: read through a page table, stored at slots.

use super::ExecError;
use super::context::Context;
use super::simd::{Simd, kernel};
use crate::format::index_row::IndexFormat;
use crate::format::kv_row::{KvFormat, round_nope};
use crate::ops::{BufferId, HEAD_DIM, INDEX_DIM, Paged};

/// A pool as the requests of a step see it.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    pub table: &'a [i32],
    pub paged: Paged,
    pub bytes: &'a [u8],
    pub page_bytes: usize,
}

impl<'a> Pages<'a> {
    /// A page of a request by its number; `None` where the table ends or its id names no page.
    #[inline]
    pub(super) fn page(&self, request: usize, number: usize) -> Option<&'a [u8]> {
        if number >= self.paged.width {
            return None;
        }
        let id = usize::try_from(self.table[request * self.paged.width + number]).ok()?;
        let start = (id < self.paged.pages).then_some(id * self.page_bytes)?;
        self.bytes.get(start..start + self.page_bytes)
    }

    /// The page that holds `row`, and its place there.
    #[inline]
    pub(super) fn find(&self, request: usize, row: usize) -> Option<(&'a [u8], usize)> {
        let page = self.page(request, row / self.paged.page_rows)?;
        Some((page, row % self.paged.page_rows))
    }
}

/// Page and row of a store slot, `None` if it is negative or beyond the pool.
#[inline]
pub(super) fn slot(slot: i64, page_rows: usize, pages: usize) -> Option<(usize, usize)> {
    let slot = usize::try_from(slot).ok()?;
    let (page, row) = (slot / page_rows, slot % page_rows);
    (page < pages).then_some((page, row))
}

/// A pool of key/value rows, to write.
pub(super) struct KvPool<'a> {
    bytes: &'a mut [u8],
    page_rows: usize,
    format: KvFormat,
    trained: bool,
}

impl<'a> KvPool<'a> {
    pub(super) fn new(
        context: &mut Context<'a, '_>,
        pool: BufferId,
        pages: usize,
        page_rows: usize,
        format: KvFormat,
        trained: bool,
    ) -> Result<Self, ExecError> {
        let bytes = context.pool_mut(pool, pages * format.page_bytes(page_rows))?;
        Ok(Self { bytes, page_rows, format, trained })
    }

    /// Stores a row at a slot of the pool; the row is left as rounded.
    pub(super) fn store(&mut self, simd: Simd, (page, place): (usize, usize), row: &mut [f32; HEAD_DIM]) {
        let len = self.format.page_bytes(self.page_rows);
        let page = &mut self.bytes[page * len..(page + 1) * len];
        encode_kv(simd, self.format, self.trained, row, page, place, self.page_rows);
    }
}

kernel! {
    fn encode_kv<'a>(
        _lanes; format: KvFormat, trained: bool, row: &'a mut [f32; HEAD_DIM], page: &'a mut [u8], place: usize, rows: usize,
    ) -> () {
        // FP8 storage rounds by itself.
        if trained && format != KvFormat::Fp8 {
            round_nope(row);
        }
        format.encode_row(row, page, place, rows);
    }
}

kernel! {
    pub(super) fn decode_kv<'a>(_lanes; format: KvFormat, page: &'a [u8], place: usize, rows: usize, out: &'a mut [f32; HEAD_DIM]) -> () {
        format.decode_row(page, place, rows, out);
    }
}

kernel! {
    /// The first rows of a page of index keys, as many as `out` holds.
    pub(super) fn decode_keys<'a>(_lanes; format: IndexFormat, page: &'a [u8], rows: usize, out: &'a mut [f32]) -> () {
        for (r, out) in out.as_chunks_mut::<INDEX_DIM>().0.iter_mut().enumerate() {
            format.decode_row(page, r, rows, out);
        }
    }
}
