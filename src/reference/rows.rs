//! Rows of pools: where a slot lies, and the step from f64 to a stored row, which is the shared code of `crate::format`.

use crate::format::index_row::{self, IndexFormat};
use crate::format::kv_row::{self, KvFormat, round_nope};

/// A pool that rows are stored in.
pub(super) struct Pool<'a> {
    bytes: &'a mut [u8],
    pages: usize,
    page_rows: usize,
    page_bytes: usize,
}

impl<'a> Pool<'a> {
    pub(super) fn new(bytes: &'a mut [u8], pages: usize, page_rows: usize, page_bytes: usize) -> Self {
        Self { bytes, pages, page_rows, page_bytes }
    }

    /// The page of a slot and the row's place in it; `None` if the slot names no row.
    pub(super) fn find(&mut self, slot: i64) -> Option<(&mut [u8], usize)> {
        let slot = usize::try_from(slot).ok()?;
        let page = slot / self.page_rows;
        if page >= self.pages {
            return None;
        }
        let bytes = self.bytes.get_mut(page * self.page_bytes..(page + 1) * self.page_bytes)?;
        Some((bytes, slot % self.page_rows))
    }
}

fn to_f32<const N: usize>(row: &[f64]) -> [f32; N] {
    std::array::from_fn(|i| row[i] as f32)
}

/// Stores a key/value row, rounded as the model was trained if `trained`.
pub(super) fn store_kv(
    row: &[f64],
    page: &mut [u8],
    place: usize,
    page_rows: usize,
    format: KvFormat,
    trained: bool,
) {
    let mut values: [f32; kv_row::DIMS] = to_f32(row);
    if trained {
        round_nope(&mut values);
    }
    format.encode_row(&values, page, place, page_rows);
}

pub(super) fn load_kv(page: &[u8], place: usize, page_rows: usize, format: KvFormat) -> Vec<f64> {
    let mut values = [0.0; kv_row::DIMS];
    format.decode_row(page, place, page_rows, &mut values);
    values.iter().map(|&v| f64::from(v)).collect()
}

pub(super) fn store_index(row: &[f64], page: &mut [u8], place: usize, page_rows: usize, format: IndexFormat) {
    let values: [f32; index_row::DIMS] = to_f32(row);
    format.encode_row(&values, page, place, page_rows);
}

pub(super) fn load_index(page: &[u8], place: usize, page_rows: usize, format: IndexFormat) -> Vec<f64> {
    let mut values = [0.0; index_row::DIMS];
    format.decode_row(page, place, page_rows, &mut values);
    values.iter().map(|&v| f64::from(v)).collect()
}

/// A query head, kept as codes and scales of its own.
pub(super) fn encode_index(row: &[f64], codes: &mut [u8], scales: &mut [u8], format: IndexFormat) {
    let values: [f32; index_row::DIMS] = to_f32(row);
    format.encode(&values, codes, scales);
}

pub(super) fn decode_index(codes: &[u8], scales: &[u8], format: IndexFormat) -> Vec<f64> {
    let mut values = [0.0; index_row::DIMS];
    format.decode(codes, scales, &mut values);
    values.iter().map(|&v| f64::from(v)).collect()
}

/// `H x / sqrt(128)`, by the entries of the Sylvester matrix: `H[i][j] = (-1)^popcount(i & j)`.
pub(super) fn hadamard(row: &[f64]) -> Vec<f64> {
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let norm = (row.len() as f64).sqrt();
    (0..row.len()).map(|i| row.iter().enumerate().map(|(j, v)| sign(i, j) * v).sum::<f64>() / norm).collect()
}
