//! Number formats and packing.
