//! One kind of page (or state slot): allocation, ownership, generations and deferred return.

use std::collections::VecDeque;

/// Who holds a page: a request's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// A handle to an allocated page. Stale once the page has been freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    pub id: u32,
    pub generation: u32,
}

/// What is wrong with a request's use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    #[error("{what}: {needed} wanted, {free} free")]
    Exhausted { what: &'static str, needed: usize, free: usize },
    #[error("{what} {id} is out of range: there are {count}")]
    OutOfRange { what: &'static str, id: u32, count: usize },
    #[error("{what} {id} is free: freed twice, or never allocated")]
    NotAllocated { what: &'static str, id: u32 },
    #[error("{what} {id} belongs to request {owner}, not to request {claimed}")]
    Foreign { what: &'static str, id: u32, owner: u64, claimed: u64 },
    #[error("{what} {id} has generation {current}, the handle {stale}: it was freed and allocated again")]
    Stale { what: &'static str, id: u32, current: u32, stale: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    owner: Option<Owner>,
}

/// Pages of one pool. Ids below `reserved` (the null page) are never handed out.
#[derive(Clone, Debug)]
pub struct Pages {
    what: &'static str,
    entries: Vec<Entry>,
    reserved: usize,
    free: Vec<u32>,
    /// Freed, but readable until the step with this number has settled.
    retired: VecDeque<(u64, u32)>,
}

impl Pages {
    /// `count` pages, the first `reserved` of them never handed out; `what` names one in errors.
    #[must_use]
    pub fn new(what: &'static str, count: usize, reserved: usize) -> Self {
        let entries = vec![Entry { generation: 0, owner: None }; count];
        let last = u32::try_from(count).unwrap_or(u32::MAX);
        let first = u32::try_from(reserved).unwrap_or(u32::MAX);
        Self { what, entries, reserved, free: (first..last).rev().collect(), retired: VecDeque::new() }
    }

    #[must_use]
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Pages that can be handed out at all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.entries.len().saturating_sub(self.reserved)
    }

    /// Confirms that `count` pages are free.
    ///
    /// # Errors
    /// [`PageError::Exhausted`].
    pub fn enough(&self, count: usize) -> Result<(), PageError> {
        let free = self.free.len();
        if count > free {
            return Err(PageError::Exhausted { what: self.what, needed: count, free });
        }
        Ok(())
    }

    /// Hands out `count` pages, or none.
    ///
    /// # Errors
    /// [`PageError::Exhausted`].
    pub fn allocate(&mut self, owner: Owner, count: usize) -> Result<Vec<Page>, PageError> {
        self.enough(count)?;
        let ids = self.free.split_off(self.free.len() - count);
        Ok(ids.into_iter().rev().map(|id| self.hand_out(owner, id)).collect())
    }

    fn hand_out(&mut self, owner: Owner, id: u32) -> Page {
        let entry = &mut self.entries[id as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.owner = Some(owner);
        Page { id, generation: entry.generation }
    }

    /// Confirms that `owner` holds `page` in its present generation.
    ///
    /// # Errors
    /// The way in which it does not.
    pub fn check(&self, owner: Owner, page: Page) -> Result<(), PageError> {
        let (what, id) = (self.what, page.id);
        let count = self.entries.len();
        let Some(entry) = self.entries.get(id as usize).filter(|_| id as usize >= self.reserved) else {
            return Err(PageError::OutOfRange { what, id, count });
        };
        match entry.owner {
            None => Err(PageError::NotAllocated { what, id }),
            Some(_) if entry.generation != page.generation => {
                Err(PageError::Stale { what, id, current: entry.generation, stale: page.generation })
            }
            Some(holder) if holder != owner => {
                Err(PageError::Foreign { what, id, owner: holder.0, claimed: owner.0 })
            }
            Some(_) => Ok(()),
        }
    }

    /// Takes a page back. It is handed out again only once [`Pages::settle`] has reached `step`, the last step that may
    /// still use it.
    ///
    /// # Errors
    /// As [`Pages::check`]; nothing changes then.
    pub fn retire(&mut self, owner: Owner, page: Page, step: u64) -> Result<(), PageError> {
        self.check(owner, page)?;
        self.entries[page.id as usize].owner = None;
        self.retired.push_back((step, page.id));
        Ok(())
    }

    /// Steps up to and including `step` have completed: what they might have used is free.
    pub fn settle(&mut self, step: u64) {
        while self.retired.front().is_some_and(|&(last, _)| last <= step) {
            self.free.extend(self.retired.pop_front().map(|(_, id)| id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Owner = Owner(1);
    const B: Owner = Owner(2);

    #[test]
    fn the_null_page_is_never_handed_out() {
        let mut pages = Pages::new("page", 4, 1);
        let got = pages.allocate(A, 3).unwrap();
        assert!(got.iter().all(|p| p.id != 0));
        let refused = PageError::Exhausted { what: "page", needed: 1, free: 0 };
        assert_eq!(pages.allocate(A, 1), Err(refused));
    }

    /// P09: one page freed on two paths.
    #[test]
    fn a_double_free_is_an_error_and_changes_nothing() {
        let mut pages = Pages::new("page", 4, 1);
        let page = pages.allocate(A, 1).unwrap()[0];
        pages.retire(A, page, 0).unwrap();
        assert_eq!(pages.retire(A, page, 0), Err(PageError::NotAllocated { what: "page", id: page.id }));
        pages.settle(0);
        assert_eq!(pages.free_count(), 3);
    }

    /// P05: stale generation or out-of-range id.
    #[test]
    fn stale_foreign_and_wild_handles_are_told_apart() {
        let mut pages = Pages::new("page", 2, 1);
        let old = pages.allocate(A, 1).unwrap()[0];
        pages.retire(A, old, 0).unwrap();
        pages.settle(0);
        let new = pages.allocate(B, 1).unwrap()[0];
        assert_eq!(new.id, old.id);
        assert!(matches!(pages.check(A, old), Err(PageError::Stale { .. })));
        assert!(matches!(pages.check(A, new), Err(PageError::Foreign { owner: 2, claimed: 1, .. })));
        for id in [0, 2, u32::MAX] {
            let wild = Page { id, generation: 1 };
            assert!(matches!(pages.check(A, wild), Err(PageError::OutOfRange { .. })), "{id}");
        }
    }

    /// P01: a page whose last write is in flight is not handed out.
    #[test]
    fn a_page_waits_for_the_step_that_may_still_use_it() {
        let mut pages = Pages::new("page", 2, 1);
        let page = pages.allocate(A, 1).unwrap()[0];
        pages.retire(A, page, 7).unwrap();
        pages.settle(6);
        assert!(pages.allocate(B, 1).is_err());
        pages.settle(7);
        assert!(pages.allocate(B, 1).is_ok());
    }
}
