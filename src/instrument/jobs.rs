//! Hashes that the canary asks a device for.

use std::collections::BTreeSet;
use std::ops::Range;

use super::canary::Key;
use super::hash::WORD;
use super::pools::{Pool, Role};
use super::probe::{Probe, Span, Store};
use crate::cache::Page;

/// Hashes to ask a device for, in one call.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// Key, pool of its kind, and row; `None`: the page, or its padding.
    pub(super) what: Vec<(Key, usize, Option<usize>)>,
    /// Spans of each.
    counts: Vec<usize>,
    spans: Vec<Span>,
    pub(super) bytes: usize,
}

impl Jobs {
    pub(super) fn row(&mut self, key: Key, at: usize, pool: &Pool, row: usize) {
        self.add((key, at, Some(row)), pool, pool.row(row));
    }

    pub(super) fn page(&mut self, key: Key, at: usize, pool: &Pool) {
        self.add((key, at, None), pool, std::slice::from_ref(&(0..pool.page_bytes)));
    }

    pub(super) fn padding(&mut self, key: Key, at: usize, pool: &Pool) {
        self.add((key, at, None), pool, pool.padding());
    }

    fn add(&mut self, what: (Key, usize, Option<usize>), pool: &Pool, ranges: &[Range<usize>]) {
        self.what.push(what);
        self.counts.push(ranges.len());
        let base = what.0.page.id as usize * pool.page_bytes;
        for range in ranges {
            let first = u32::try_from(range.start / WORD).unwrap_or(u32::MAX);
            self.bytes += range.len();
            let range = base + range.start..base + range.end;
            self.spans.push(Span { store: Store::Pool(pool.id), range, first });
        }
    }

    pub(super) fn run(&self, probe: &mut dyn Probe) -> Result<Vec<u64>, String> {
        let mut hashes = probe.hashes(&self.spans)?.into_iter();
        let sum = |&count| hashes.by_ref().take(count).fold(0, |sum: u64, h| sum.wrapping_add(h));
        Ok(self.counts.iter().map(sum).collect())
    }
}

/// Changes one bit of the first, a middle and the last row of a page that nobody holds, and looks whether hashing sees it.
pub(super) fn self_test(pool: &Pool, page: u32, probe: &mut dyn Probe) -> Result<(), String> {
    let key = Key { window: pool.role == Role::Window, page: Page { id: page, generation: 0 } };
    let mut jobs = Jobs::default();
    (0..pool.page_rows).for_each(|row| jobs.row(key, 0, pool, row));
    jobs.page(key, 0, pool);
    let before = jobs.run(probe)?;
    for row in BTreeSet::from([0, pool.page_rows / 2, pool.page_rows - 1]) {
        let Some(range) = pool.row(row).last() else { continue };
        let at = page as usize * pool.page_bytes + range.end - 1;
        let mut byte = [0];
        probe.read(Store::Pool(pool.id), at, &mut byte)?;
        probe.write(Store::Pool(pool.id), at, &[byte[0] ^ 1])?;
        let after = jobs.run(probe)?;
        probe.write(Store::Pool(pool.id), at, &byte)?;
        let seen = (0..before.len()).filter(|&i| before[i] != after[i]);
        if seen.collect::<Vec<_>>() != [row, pool.page_rows] {
            return Err(format!(
                "the canary does not see a changed bit in row {row} of {}, so it certifies nothing",
                pool.name
            ));
        }
    }
    Ok(())
}
