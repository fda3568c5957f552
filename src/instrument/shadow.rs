//! A step's inputs turned so that the step can be run again beside the first run: it reads what the first read, and stores
//! to pages and state slots that no request holds.

use std::collections::BTreeMap;
use std::ops::Range;

use super::pools::{Pools, Role};
use super::probe::{Probe, Store};
use crate::engine::Prepared;
use crate::model::{CacheLayout, CacheSize};
use crate::ops::{BLOCK_TOKENS, BufferId, PAGE_ROWS, Value};
use crate::step::{HostIo, LayoutError, Owners};

/// Pages and state slots that are kept free for the instruments, in every engine, so that none of them moves anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    pub windows: Range<u32>,
    pub blocks: Range<u32>,
    pub slots: Range<u32>,
}

impl Reserve {
    /// Behind the null page: what one step of `rows` requests, or one prefill block, stores to.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX - 1);
        let prefill = u32::try_from(BLOCK_TOKENS / PAGE_ROWS).unwrap_or(u32::MAX);
        let after = |count: u32| 1..count.saturating_add(1);
        Self { windows: after(rows.max(prefill)), blocks: after(rows), slots: 0..rows }
    }

    /// Nothing but the null page.
    #[must_use]
    pub const fn none() -> Self {
        Self { windows: 1..1, blocks: 1..1, slots: 0..0 }
    }

    /// A cache with what is reserved beside it.
    #[must_use]
    pub fn beside(&self, size: CacheSize) -> CacheSize {
        CacheSize {
            window_pages: size.window_pages.saturating_add(self.windows.len()),
            blocks: size.blocks.saturating_add(self.blocks.len()),
            slots: size.slots.saturating_add(self.slots.len()),
        }
    }
}

/// Why a step cannot be run again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShadowError {
    #[error("the step stores to {needed} {what}, {reserved} are reserved for running it again")]
    Reserve { what: &'static str, needed: usize, reserved: usize },
    #[error("the inputs of the second run were refused: {0}")]
    Layout(#[from] LayoutError),
}

/// Where the second run stores: by page (or slot) of the first run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shadow {
    windows: BTreeMap<u32, u32>,
    blocks: BTreeMap<u32, u32>,
    slots: BTreeMap<u32, u32>,
}

impl Shadow {
    /// Reads off `live`, the inputs of the first run, where it stores.
    ///
    /// # Errors
    /// [`ShadowError::Reserve`].
    pub fn of(prepared: &Prepared, live: &HostIo, reserve: &Reserve) -> Result<Self, ShadowError> {
        let io = &prepared.step.io;
        let pages = |slots: &Value, rows: usize| -> Vec<u32> {
            let slots = live.host::<i64>(slots).iter().filter_map(|&s| usize::try_from(s).ok());
            slots.filter_map(|s| u32::try_from(s / rows).ok()).collect()
        };
        let mut blocks = pages(&io.c4_slot, BLOCK_TOKENS / 4);
        blocks.extend(pages(&io.c128_slot, BLOCK_TOKENS / 128));
        let slots = live.host::<i32>(&io.state_slot).iter().filter_map(|&s| u32::try_from(s).ok());
        Ok(Self {
            windows: map("window pages", pages(&io.window_slot, PAGE_ROWS), &reserve.windows)?,
            blocks: map("blocks", blocks, &reserve.blocks)?,
            slots: map("state slots", slots.collect(), &reserve.slots)?,
        })
    }

    /// Copies what the first run is about to write over, so that the second starts from the same.
    ///
    /// # Errors
    /// The device's sentence.
    pub fn copy(&self, pools: &Pools, layout: &CacheLayout, probe: &mut dyn Probe) -> Result<(), String> {
        for pool in pools.iter() {
            for (&from, &to) in self.pages(pool.role) {
                let from = from as usize * pool.page_bytes;
                let to = to as usize * pool.page_bytes;
                probe.copy(Store::Pool(pool.id), from..from + pool.page_bytes, to)?;
            }
        }
        for state in layout.states() {
            for (&from, &to) in &self.slots {
                let bytes = state.len * 4;
                let from = from as usize * bytes;
                probe.copy(Store::State(state.id), from..from + bytes, to as usize * bytes)?;
            }
        }
        Ok(())
    }

    /// Writes the inputs of the second run, and checks them as those of any step.
    ///
    /// # Errors
    /// [`ShadowError::Layout`].
    pub fn inputs(&self, prepared: &Prepared, live: &HostIo, second: &mut HostIo) -> Result<(), ShadowError> {
        let io = &prepared.step.io;
        second.inputs_mut().copy_from_slice(live.inputs());
        for (table, pages) in [(&io.window_table, &self.windows), (&io.block_table, &self.blocks)] {
            for id in second.host_mut::<i32>(table) {
                *id = moved(pages, *id);
            }
        }
        for slot in second.host_mut::<i32>(&io.state_slot) {
            *slot = moved(&self.slots, *slot);
        }
        let stores = [
            (&io.window_slot, &self.windows, PAGE_ROWS),
            (&io.c4_slot, &self.blocks, BLOCK_TOKENS / 4),
            (&io.c128_slot, &self.blocks, BLOCK_TOKENS / 128),
        ];
        for (slots, pages, rows) in stores {
            for slot in second.host_mut::<i64>(slots) {
                *slot = moved_row(pages, *slot, rows);
            }
        }
        Ok(prepared.layout.check(second, &Held { prepared, live, shadow: self })?)
    }

    /// Pages of the first run by those of the second, for the pools of a role.
    #[must_use]
    pub fn pages(&self, role: Role) -> &BTreeMap<u32, u32> {
        if role == Role::Window { &self.windows } else { &self.blocks }
    }

    #[must_use]
    pub fn slots(&self) -> &BTreeMap<u32, u32> {
        &self.slots
    }
}

/// Each page that is written to, with one of the reserved pages.
fn map(
    what: &'static str,
    mut pages: Vec<u32>,
    reserved: &Range<u32>,
) -> Result<BTreeMap<u32, u32>, ShadowError> {
    pages.sort_unstable();
    pages.dedup();
    if pages.len() > reserved.len() {
        return Err(ShadowError::Reserve { what, needed: pages.len(), reserved: reserved.len() });
    }
    Ok(pages.into_iter().zip(reserved.clone()).collect())
}

fn moved(pages: &BTreeMap<u32, u32>, id: i32) -> i32 {
    let to = u32::try_from(id).ok().and_then(|id| pages.get(&id));
    to.and_then(|&to| i32::try_from(to).ok()).unwrap_or(id)
}

fn moved_row(pages: &BTreeMap<u32, u32>, slot: i64, rows: usize) -> i64 {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    let page = u32::try_from(slot.div_euclid(rows)).ok().and_then(|page| pages.get(&page));
    page.map_or(slot, |&to| i64::from(to) * rows + slot.rem_euclid(rows))
}

/// Who holds what in the second run: requests read what they read in the first, or its shadow, and write shadows alone.
struct Held<'a> {
    prepared: &'a Prepared,
    live: &'a HostIo,
    shadow: &'a Shadow,
}

impl Held<'_> {
    fn of(&self, table: BufferId) -> (&Value, usize, &BTreeMap<u32, u32>) {
        let io = &self.prepared.step.io;
        if table == io.window_table.buffer {
            (&io.window_table, io.window_width, &self.shadow.windows)
        } else {
            (&io.block_table, io.block_width, &self.shadow.blocks)
        }
    }

    /// The first run's table has this page at this place.
    fn sees(&self, table: BufferId, request: usize, column: usize, page: u32) -> bool {
        let (table, width, _) = self.of(table);
        let ids = self.live.host::<i32>(table).chunks(width.max(1)).nth(request).unwrap_or(&[]);
        ids.get(column).is_some_and(|&id| u32::try_from(id) == Ok(page))
    }
}

impl Owners for Held<'_> {
    fn reads(&self, table: BufferId, request: usize, column: usize, page: usize) -> bool {
        let Ok(page) = u32::try_from(page) else { return false };
        let shadowed = self.of(table).2.contains_key(&page);
        self.writes(table, request, column, page as usize)
            || (!shadowed && self.sees(table, request, column, page))
    }

    fn writes(&self, table: BufferId, request: usize, column: usize, page: usize) -> bool {
        let mut pages = self.of(table).2.iter();
        let of = pages.find_map(|(&live, &to)| (to as usize == page).then_some(live));
        of.is_some_and(|live| self.sees(table, request, column, live))
    }
}
