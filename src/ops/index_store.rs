//! `index_store`: the indexer's compressed key rows.

use super::Pooling;
use crate::format::index_row::IndexFormat;

/// As `compress` with ratio 4 and width 128; then the row is rotated by the Hadamard matrix and stored in the pool's
/// index format, which decides its rounding. A page has [`PAGE_ROWS`](super::PAGE_ROWS) rows.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexStore {
    pub pooling: Pooling,
    pub format: IndexFormat,
}
