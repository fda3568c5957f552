//! Who may read and write pages: what the cache knows and a step's inputs cannot show.

use crate::ops::BufferId;

/// Who may read and write pages. Page tables are named by their input's buffer; `column` is the page's number in the
/// request.
pub trait Owners {
    /// The page belongs to the request, or is shared with it.
    fn reads(&self, table: BufferId, request: usize, column: usize, page: usize) -> bool;
    /// The page belongs to the request and to nobody else.
    fn writes(&self, table: BufferId, request: usize, column: usize, page: usize) -> bool;
}

/// Takes every page for the request's own; the other checks remain.
#[derive(Clone, Copy, Debug)]
pub struct AnyOwner;

impl Owners for AnyOwner {
    fn reads(&self, _: BufferId, _: usize, _: usize, _: usize) -> bool {
        true
    }

    fn writes(&self, _: BufferId, _: usize, _: usize, _: usize) -> bool {
        true
    }
}
