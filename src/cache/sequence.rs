//! What one request holds: window pages that slide, blocks that grow, one state slot.

use std::collections::VecDeque;

use super::pages::{Owner, Page, PageError, Pages};
use crate::instrument::Reserve;
use crate::model::CacheSize;
use crate::ops::{BLOCK_TOKENS, PAGE_ROWS, WINDOW};

/// Window pages that a request holds between steps: those of 128 rows at any place.
pub(crate) const WINDOW_PAGES: usize = WINDOW.div_ceil(PAGE_ROWS) + 1;
/// Window pages that a prefill block adds until it has completed.
pub(crate) const BLOCK_PAGES: usize = BLOCK_TOKENS / PAGE_ROWS;

/// All pages of one engine.
#[derive(Clone, Debug)]
pub struct Caches {
    pub windows: Pages,
    pub blocks: Pages,
    pub slots: Pages,
}

impl Caches {
    #[must_use]
    pub fn new(size: CacheSize) -> Self {
        Self::with_reserve(size, &Reserve::none())
    }

    /// As [`Caches::new`]; what is reserved is never handed out.
    #[must_use]
    pub fn with_reserve(size: CacheSize, reserve: &Reserve) -> Self {
        let kept = |end: u32| end as usize;
        Self {
            windows: Pages::new("window page", size.window_pages, kept(reserve.windows.end)),
            blocks: Pages::new("block", size.blocks, kept(reserve.blocks.end)),
            slots: Pages::new("state slot", size.slots, kept(reserve.slots.end)),
        }
    }

    /// Steps up to and including `step` have completed.
    pub fn settle(&mut self, step: u64) {
        self.windows.settle(step);
        self.blocks.settle(step);
        self.slots.settle(step);
    }
}

/// The pages of one request. Whoever drops it without [`Sequence::release`] leaks them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub owner: Owner,
    pub slot: Page,
    /// Pages of 256 tokens, by number.
    pub blocks: Vec<Page>,
    /// Pages of 64 window rows by number, ascending; those behind the window have been returned.
    pub windows: VecDeque<(usize, Page)>,
}

impl Sequence {
    /// Everything that `tokens` tokens will need, window pages aside, so that a request that has begun cannot run out.
    ///
    /// # Errors
    /// [`PageError::Exhausted`]; nothing is held then.
    pub fn admit(caches: &mut Caches, owner: Owner, tokens: usize) -> Result<Self, PageError> {
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        caches.blocks.enough(blocks)?;
        let slot = caches.slots.allocate(owner, 1)?[0];
        Ok(Self { owner, slot, blocks: caches.blocks.allocate(owner, blocks)?, windows: VecDeque::new() })
    }

    /// Window pages for rows `from..to` of this step and the 127 rows before `from`.
    ///
    /// # Errors
    /// [`PageError::Exhausted`].
    pub fn extend_window(&mut self, caches: &mut Caches, from: usize, to: usize) -> Result<(), PageError> {
        let first = from.saturating_sub(WINDOW - 1) / PAGE_ROWS;
        let next = self.windows.back().map_or(first, |(number, _)| number + 1);
        for number in next..to.div_ceil(PAGE_ROWS) {
            let page = caches.windows.allocate(self.owner, 1)?[0];
            self.windows.push_back((number, page));
        }
        Ok(())
    }

    /// Returns window pages that no query at or after `position` can see, once `step` has settled.
    ///
    /// # Errors
    /// [`PageError`] if a page is not this request's.
    pub fn slide(&mut self, caches: &mut Caches, position: usize, step: u64) -> Result<(), PageError> {
        let first = position.saturating_sub(WINDOW - 1) / PAGE_ROWS;
        while let Some(&(number, page)) = self.windows.front().filter(|(number, _)| *number < first) {
            debug_assert!(number < first);
            caches.windows.retire(self.owner, page, step)?;
            self.windows.pop_front();
        }
        Ok(())
    }

    /// Returns everything, once `step` has settled.
    ///
    /// # Errors
    /// The first [`PageError`]; the rest is returned all the same.
    pub fn release(self, caches: &mut Caches, step: u64) -> Result<(), PageError> {
        let owner = self.owner;
        let windows = self.windows.into_iter().map(|(_, page)| caches.windows.retire(owner, page, step));
        let windows = windows.fold(Ok(()), Result::and);
        let blocks = self.blocks.into_iter().map(|page| caches.blocks.retire(owner, page, step));
        let blocks = blocks.fold(Ok(()), Result::and);
        windows.and(blocks).and(caches.slots.retire(owner, self.slot, step))
    }

    /// The window page with this number.
    #[must_use]
    pub fn window(&self, number: usize) -> Option<Page> {
        let (first, _) = self.windows.front()?;
        let (found, page) = self.windows.get(number.checked_sub(*first)?)?;
        debug_assert_eq!(*found, number);
        Some(*page)
    }

    /// The pool row of a window row.
    #[must_use]
    pub fn window_slot(&self, position: usize) -> Option<i64> {
        let page = self.window(position / PAGE_ROWS)?;
        i64::try_from(page.id as usize * PAGE_ROWS + position % PAGE_ROWS).ok()
    }

    /// The pool row of the compressed row that the token at `position` completes; `None` if it completes none.
    #[must_use]
    pub fn row_slot(&self, position: usize, ratio: usize) -> Option<i64> {
        if !(position + 1).is_multiple_of(ratio) {
            return None;
        }
        let page = self.blocks.get(position / BLOCK_TOKENS)?;
        let page_rows = BLOCK_TOKENS / ratio;
        i64::try_from(page.id as usize * page_rows + position / ratio % page_rows).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches() -> Caches {
        Caches::new(CacheSize { window_pages: 1 + WINDOW_PAGES + 2 * BLOCK_PAGES, blocks: 9, slots: 2 })
    }

    #[test]
    fn a_request_never_holds_more_than_its_share_of_window_pages() {
        let mut caches = caches();
        let mut seq = Sequence::admit(&mut caches, Owner(1), 2048).unwrap();
        for (step, from) in (0u64..).zip((0..2048).step_by(BLOCK_TOKENS)) {
            seq.extend_window(&mut caches, from, from + BLOCK_TOKENS).unwrap();
            assert!(seq.windows.len() <= WINDOW_PAGES + BLOCK_PAGES);
            assert!((from.saturating_sub(127)..from + BLOCK_TOKENS).all(|p| seq.window_slot(p).is_some()));
            seq.slide(&mut caches, from + BLOCK_TOKENS, step).unwrap();
            assert!(seq.windows.len() <= WINDOW_PAGES);
            // The step before has completed, this one has not.
            step.checked_sub(1).into_iter().for_each(|before| caches.settle(before));
        }
        seq.release(&mut caches, 99).unwrap();
        caches.settle(99);
        assert_eq!(caches.windows.free_count(), caches.windows.total());
        assert_eq!(caches.blocks.free_count(), caches.blocks.total());
        assert_eq!(caches.slots.free_count(), caches.slots.total());
    }

    #[test]
    fn a_refused_admission_holds_nothing() {
        let mut caches = caches();
        assert!(Sequence::admit(&mut caches, Owner(1), 9 * BLOCK_TOKENS).is_err());
        assert_eq!(caches.slots.free_count(), 2);
        assert_eq!(caches.blocks.free_count(), 8);
    }

    #[test]
    fn rows_complete_at_the_last_token_of_their_group() {
        let mut caches = caches();
        let seq = Sequence::admit(&mut caches, Owner(1), 512).unwrap();
        assert_eq!(seq.row_slot(2, 4), None);
        let base = i64::from(seq.blocks[0].id);
        assert_eq!(seq.row_slot(3, 4), Some(base * 64));
        assert_eq!(seq.row_slot(255, 4), Some(base * 64 + 63));
        assert_eq!(seq.row_slot(255, 128), Some(base * 2 + 1));
        assert_eq!(seq.row_slot(383, 128), Some(i64::from(seq.blocks[1].id) * 2));
    }
}
