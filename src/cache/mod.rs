//! Paged cache memory: who owns which page, and since when.
//!
//! Pages and state slots carry an owner and a generation, so that a double free, a foreign page or a stale handle is an
//! error of the request that did it and of no other. A freed page comes back only after the step that may still use it has
//! settled. This module counts pages; it never touches their bytes.

mod pages;
mod sequence;
mod transfer;

pub use pages::{Owner, Page, PageError, Pages};
pub(crate) use sequence::{BLOCK_PAGES, WINDOW_PAGES};
pub use sequence::{Caches, Sequence};
pub use transfer::{InProcess, LayerParts, Manifest, Transfer, TransferError};
