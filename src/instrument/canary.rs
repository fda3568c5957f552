//! The canary: rows of the cache must stay as they were stored.
//!
//! After a step the rows that it stored are hashed; a page whose rows have all been stored is *sealed* with the sum. Later
//! passes hash again what they find, a budget of bytes per step, in rotation: full pages whole, tail pages by row. What it
//! cannot see is an owner that stores a wrong row of its own, as that row is what gets recorded.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use super::history::History;
use super::jobs::{Jobs, self_test};
use super::pools::{Pool, Pools, Role};
use super::probe::Probe;
use super::report::CanaryReport;
use crate::cache::{Caches, Owner, Page, Sequence};
use crate::engine::Prepared;

/// Bytes hashed again after each step unless told otherwise.
pub const DEFAULT_BUDGET: usize = 256 << 20;

/// Rows that changed although nothing may write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The step after which it was seen.
    pub step: u64,
    /// The last step after which the rows were as recorded.
    pub since: u64,
    pub pool: String,
    pub layer: usize,
    pub page: u32,
    pub owner: Owner,
    /// Rows of the page; empty if only bytes between rows changed.
    pub rows: Vec<usize>,
    /// Nodes that declared a write to these bytes since, with the step.
    pub declared: Vec<String>,
    /// Nodes that store to this pool at all.
    pub writers: Vec<String>,
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, since, pool, layer, page, owner, rows, declared, writers } = self;
        let declared = if declared.is_empty() { "none".to_owned() } else { declared.join(",") };
        write!(
            f,
            "canary hit step={step} since={since} layer={layer} pool={pool} page={page} owner={} rows={rows:?} \
             declared_writers={declared} pool_writers={}",
            owner.0,
            writers.join(",")
        )
    }
}

/// A page that a request holds: the page of every pool of a kind, as one id stands for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) window: bool,
    pub(super) page: Page,
}

#[derive(Clone, Debug)]
struct Entry {
    owner: Owner,
    /// By pool of the kind.
    records: Vec<Record>,
}

#[derive(Clone, Debug)]
struct Record {
    rows: Vec<Option<u64>>,
    /// The page's hash, once every row is stored.
    sealed: Option<u64>,
    /// The step that stored each row.
    stored: Vec<u64>,
    /// The step after which the record was last known to be true.
    clean: u64,
    checked: bool,
}

/// The book of pages and the rotation over them.
#[derive(Clone, Debug)]
pub struct Canary {
    windows: Vec<Pool>,
    blocks: Vec<Pool>,
    entries: HashMap<Key, Entry>,
    rotation: VecDeque<(Key, usize)>,
    budget: usize,
    history: History,
    report: CanaryReport,
}

/// The tokens of a request that a step has just put into the cache.
#[derive(Clone, Debug)]
pub struct Stored {
    /// What the request held when the step was launched.
    pub sequence: Sequence,
    pub start: usize,
    pub tokens: usize,
}

impl Stored {
    /// Pages of a pool whose rows are all stored and that the request still holds.
    pub(super) fn full(&self, pool: &Pool) -> impl Iterator<Item = Page> {
        let (count, window) = ((self.start + self.tokens) / pool.page_tokens(), pool.role == Role::Window);
        (0..count).filter_map(move |number| held(&self.sequence, window, number))
    }
}

impl Canary {
    /// Proves on `page` of every pool, which no request holds, that a changed bit is seen, and starts with an empty book.
    ///
    /// # Errors
    /// A sentence: the device cannot be read, or the fault was not seen; such a canary would certify nothing.
    pub fn new(
        pools: &Pools,
        steps: Arc<[Prepared]>,
        budget: usize,
        page: u32,
        probe: &mut dyn Probe,
    ) -> Result<Self, String> {
        let of = |window| pools.iter().filter(move |p| (p.role == Role::Window) == window).cloned().collect();
        let mut report = CanaryReport { pools: pools.iter().count(), budget, ..CanaryReport::default() };
        for pool in pools.iter() {
            self_test(pool, page, probe)?;
            report.certified += 1;
        }
        Ok(Self {
            windows: of(true),
            blocks: of(false),
            entries: HashMap::new(),
            rotation: VecDeque::new(),
            budget,
            history: History::new(steps),
            report,
        })
    }

    #[must_use]
    pub fn report(&self) -> &CanaryReport {
        &self.report
    }

    pub fn history(&mut self) -> &mut History {
        &mut self.history
    }

    /// Records the rows that a step has stored.
    ///
    /// # Errors
    /// The device's sentence.
    pub fn record(
        &mut self,
        step: u64,
        stored: &[Stored],
        caches: &Caches,
        probe: &mut dyn Probe,
    ) -> Result<(), String> {
        let mut jobs = Jobs::default();
        for one in stored {
            for window in [true, false] {
                self.rows_of(one, window, caches, &mut jobs);
            }
        }
        let hashes = jobs.run(probe)?;
        self.report.watched_bytes += jobs.bytes;
        let stated = self.report.watched_bytes.div_ceil(self.budget.max(1)) as u64;
        self.report.stated_latency = self.report.stated_latency.max(stated);
        for ((key, pool, row), hash) in jobs.what.iter().zip(hashes) {
            let Some(record) = self.entries.get_mut(key).and_then(|e| e.records.get_mut(*pool)) else {
                continue;
            };
            match row {
                Some(row) => {
                    record.rows[*row] = Some(hash);
                    record.stored[*row] = step;
                    if record.clean == 0 {
                        record.clean = step;
                    }
                }
                // The padding, asked for with the last row.
                None => {
                    let rows = record.rows.iter().flatten().fold(0, |sum: u64, h| sum.wrapping_add(*h));
                    record.sealed = Some(rows.wrapping_add(hash));
                    self.report.sealed += 1;
                }
            }
        }
        Ok(())
    }

    /// Asks for the rows of one kind that a request's tokens have completed.
    fn rows_of(&mut self, stored: &Stored, window: bool, caches: &Caches, jobs: &mut Jobs) {
        let Stored { sequence, start, tokens } = stored;
        let (start, tokens) = (*start, *tokens);
        let pools = if window { &self.windows } else { &self.blocks };
        for (at, pool) in pools.iter().enumerate() {
            for row in start / pool.ratio..(start + tokens) / pool.ratio {
                let number = row / pool.page_rows;
                let page = held(sequence, window, number);
                let Some(page) = page.filter(|p| holds(caches, window, sequence.owner, *p)) else { continue };
                let key = Key { window, page };
                let rotation = &mut self.rotation;
                let entry = self.entries.entry(key).or_insert_with(|| {
                    rotation.extend((0..pools.len()).map(|p| (key, p)));
                    Entry { owner: sequence.owner, records: pools.iter().map(Record::empty).collect() }
                });
                let row = row % pool.page_rows;
                jobs.row(key, at, pool, row);
                let record = &mut entry.records[at];
                // Marked so that the last row of a page is known for it; the hash comes with the answer.
                record.rows[row] = Some(0);
                if record.sealed.is_none() && record.rows.iter().all(Option::is_some) {
                    jobs.padding(key, at, pool);
                }
            }
        }
    }

    /// Hashes again as much as the budget allows, and says what has changed.
    ///
    /// # Errors
    /// The device's sentence.
    pub fn check(&mut self, step: u64, caches: &Caches, probe: &mut dyn Probe) -> Result<Vec<Hit>, String> {
        let due = self.due(caches);
        let mut jobs = Jobs::default();
        for &(key, at) in &due {
            let (pool, record) = self.pair(key, at);
            match record.sealed {
                Some(_) => jobs.page(key, at, pool),
                None => record.known().for_each(|(row, _)| jobs.row(key, at, pool, row)),
            }
        }
        self.report.bytes += jobs.bytes as u64;
        let hashes = jobs.run(probe)?;
        let mut suspects: Vec<(Key, usize)> = Vec::new();
        for ((key, at, row), hash) in jobs.what.iter().zip(hashes) {
            let (_, record) = self.pair(*key, *at);
            let known = row.map_or(record.sealed, |row| record.rows[row]);
            if known != Some(hash) && suspects.last() != Some(&(*key, *at)) {
                suspects.push((*key, *at));
            }
        }
        let hits = suspects.iter().map(|&(key, at)| self.hit(step, key, at, probe));
        let hits = hits.collect::<Result<Vec<_>, _>>()?;
        for &(key, at) in &due {
            self.checked(step, key, at);
        }
        self.report.steps += 1;
        self.report.hits += hits.len() as u64;
        Ok(hits)
    }

    fn pair(&self, key: Key, at: usize) -> (&Pool, &Record) {
        let pools = if key.window { &self.windows } else { &self.blocks };
        (&pools[at], &self.entries[&key].records[at])
    }

    /// Takes pages of the rotation until their bytes exceed the budget; those that were given back leave it.
    fn due(&mut self, caches: &Caches) -> Vec<(Key, usize)> {
        let (mut due, mut bytes) = (Vec::new(), 0);
        for _ in 0..self.rotation.len() {
            if bytes >= self.budget {
                break;
            }
            let Some((key, at)) = self.rotation.pop_front() else { break };
            let Some(entry) = self.entries.get(&key) else { continue };
            if !holds(caches, key.window, entry.owner, key.page) {
                self.forget(key);
                continue;
            }
            let (pool, record) = self.pair(key, at);
            bytes += record.bytes(pool);
            self.rotation.push_back((key, at));
            due.push((key, at));
        }
        due
    }

    /// The page has gone back to the pool.
    fn forget(&mut self, key: Key) {
        let Some(entry) = self.entries.remove(&key) else { return };
        let pools = if key.window { &self.windows } else { &self.blocks };
        let bytes = pools.iter().zip(&entry.records).map(|(pool, record)| record.bytes(pool)).sum::<usize>();
        self.report.watched_bytes -= bytes;
        let unchecked = entry.records.iter().filter(|r| r.sealed.is_some() && !r.checked).count();
        self.report.released_unchecked += unchecked as u64;
    }

    fn checked(&mut self, step: u64, key: Key, at: usize) {
        let Some(record) = self.entries.get_mut(&key).and_then(|e| e.records.get_mut(at)) else { return };
        if record.known().next().is_none() {
            return;
        }
        let report = &mut self.report;
        report.latency = report.latency.max(step.saturating_sub(record.clean));
        if record.sealed.is_some() {
            report.pages += 1;
            record.checked = true;
        } else {
            report.rows += record.known().count() as u64;
        }
        record.clean = step;
    }

    /// Finds the rows that changed and takes them as they are now, so that each change is told once.
    fn hit(&mut self, step: u64, key: Key, at: usize, probe: &mut dyn Probe) -> Result<Hit, String> {
        let (pool, record) = self.pair(key, at);
        let (pool, before) = (pool.clone(), record.clone());
        let mut jobs = Jobs::default();
        before.known().for_each(|(row, _)| jobs.row(key, at, &pool, row));
        jobs.page(key, at, &pool);
        let mut hashes = jobs.run(probe)?;
        let whole = hashes.pop();
        let rows: Vec<usize> = before
            .known()
            .zip(&hashes)
            .filter_map(|((row, known), now)| (known != *now).then_some(row))
            .collect();
        let base = key.page.id as usize * pool.page_bytes;
        let ranges = rows.iter().flat_map(|&row| pool.row(row)).map(|r| base + r.start..base + r.end);
        let since = rows.iter().map(|&row| before.stored[row]).min().unwrap_or(0).max(before.clean);
        let (declared, writers) = self.history.writers(pool.id, &ranges.collect::<Vec<_>>(), since);
        let Some(entry) = self.entries.get_mut(&key) else { return Err("a page left the book".to_owned()) };
        let record = &mut entry.records[at];
        for ((row, _), now) in before.known().zip(hashes) {
            record.rows[row] = Some(now);
        }
        record.sealed = before.sealed.and(whole);
        Ok(Hit {
            step,
            since,
            pool: pool.name.clone(),
            layer: pool.layer,
            page: key.page.id,
            owner: entry.owner,
            rows,
            declared,
            writers,
        })
    }
}

impl Record {
    fn empty(pool: &Pool) -> Self {
        let stored = vec![0; pool.page_rows];
        Self { rows: vec![None; pool.page_rows], sealed: None, stored, clean: 0, checked: false }
    }

    /// Bytes that a check hashes.
    fn bytes(&self, pool: &Pool) -> usize {
        if self.sealed.is_some() {
            return pool.page_bytes;
        }
        self.known().map(|(row, _)| pool.row_bytes(row)).sum()
    }

    fn known(&self) -> impl Iterator<Item = (usize, u64)> {
        self.rows.iter().enumerate().filter_map(|(row, hash)| hash.map(|hash| (row, hash)))
    }
}

fn holds(caches: &Caches, window: bool, owner: Owner, page: Page) -> bool {
    let pages = if window { &caches.windows } else { &caches.blocks };
    pages.check(owner, page).is_ok()
}

/// The handle of a request's page by its number in the sequence.
fn held(sequence: &Sequence, window: bool, number: usize) -> Option<Page> {
    if window {
        let (first, _) = sequence.windows.front()?;
        sequence.windows.get(number.checked_sub(*first)?).map(|(_, page)| *page)
    } else {
        sequence.blocks.get(number).copied()
    }
}
