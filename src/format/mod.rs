//! Number formats and packing.
pub mod index_row;
pub mod kv_row;
