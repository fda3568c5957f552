//! The layout check: what must hold of a step's inputs so that settled and tail rows are disjoint in fact, as the proof
//! takes them to be. A step whose inputs fail it does not run.
//!
//! Slots are pairwise distinct, lie on pages that the writing request alone can see, never on the null page, and agree with
//! positions and page tables. State slots are distinct. Who owns a page is the cache's knowledge and comes in as [`Owners`].

mod error;
mod owners;

use std::collections::HashMap;

pub use error::LayoutError;
pub use owners::{AnyOwner, Owners};

use super::graph::Graph;
use super::host_io::HostIo;
use crate::ops::{BufferId, Compress, Compressed, IndexStore, Op, PAGE_ROWS, Paged, Tokens, Value, WINDOW};

/// What one page table lets a request see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    paged: Paged,
    /// Tokens that share a row: 1 for the window.
    ratio: usize,
}

/// Rows that the step stores through one slot input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Store {
    slots: Value,
    ratio: usize,
    page_rows: usize,
    pages: usize,
    /// The table through which the stored rows are read.
    table: Option<Value>,
    width: usize,
}

/// The checks of one step, collected from its nodes once; [`Layout::check`] runs before each replay.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    names: HashMap<BufferId, String>,
    tokens: Option<Tokens>,
    views: Vec<View>,
    stores: Vec<Store>,
    states: Vec<(Value, usize)>,
    /// Rows that are sampled from.
    samples: Vec<Value>,
    /// The positions of what is sampled, and the samples of a request.
    sampled: Option<(Value, usize)>,
    max_positions: usize,
}

impl Layout {
    /// Collects the checks of a step.
    ///
    /// # Errors
    /// [`LayoutError::Stride`] if a node reads a table by another stride than the table has.
    pub fn of(graph: &Graph) -> Result<Self, LayoutError> {
        let mut layout = Self { max_positions: usize::MAX, ..Self::default() };
        let mut pools: HashMap<BufferId, View> = HashMap::new();
        for id in graph.node_ids() {
            for view in views(&graph.node(id).op) {
                check_stride(graph, id, &view.paged)?;
                pools.insert(view.paged.pool, view);
                if !layout.views.iter().any(|v| alike(v, &view)) {
                    layout.views.push(view);
                }
            }
        }
        for node in &graph.nodes {
            layout.node(&node.op, &pools);
        }
        let named = graph.buffer_ids().map(|id| (id, graph.buffer(id).name.clone()));
        layout.names = named.collect();
        Ok(layout)
    }

    fn node(&mut self, op: &Op, pools: &HashMap<BufferId, View>) {
        let (slots, pool, ratio, page_rows, pages, tokens, max) = match op {
            Op::RopeStore(o) => (o.slot, o.pool, 1, PAGE_ROWS, o.pages, o.tokens, o.max_positions),
            Op::Compress(Compress { pooling: p, page_rows, .. }) => {
                (p.row_slot, p.pool, p.layout.ratio, *page_rows, p.pages, p.tokens, p.max_positions)
            }
            Op::IndexStore(IndexStore { pooling: p, .. }) => {
                (p.row_slot, p.pool, p.layout.ratio, PAGE_ROWS, p.pages, p.tokens, p.max_positions)
            }
            Op::Embed(o) => return add(&mut self.states, (o.carry.slot, o.carry.slots)),
            Op::HyperHead(o) => return add(&mut self.samples, o.rows),
            Op::Sample(o) => {
                self.sampled = Some((o.position, o.per_request.max(1)));
                return;
            }
            _ => return,
        };
        self.tokens = Some(tokens);
        self.max_positions = self.max_positions.min(max);
        let view = pools.get(&pool).map(|v| v.paged);
        let (table, width) = (view.map(|v| v.table), view.map_or(0, |v| v.width));
        add(&mut self.stores, Store { slots, ratio, page_rows, pages, table, width });
        if let Op::Compress(Compress { pooling: p, .. }) | Op::IndexStore(IndexStore { pooling: p, .. }) = op
        {
            add(&mut self.states, (p.state_slot, p.state_slots));
        }
    }

    /// Checks the inputs in `memory`.
    ///
    /// # Errors
    /// The first [`LayoutError`].
    pub fn check(&self, memory: &HostIo, owners: &dyn Owners) -> Result<(), LayoutError> {
        let Some(tokens) = self.tokens else { return Ok(()) };
        let positions: &[i32] = memory.host(&tokens.position);
        self.positions(positions, tokens.per_request)?;
        let live: Vec<&[i32]> = positions.chunks(tokens.per_request.max(1)).map(live).collect();
        for view in &self.views {
            self.view(view, memory, &live, owners)?;
        }
        for store in &self.stores {
            self.store(store, memory, positions, tokens.per_request, owners)?;
        }
        for (slots, limit) in &self.states {
            self.state(slots, *limit, memory, &live)?;
        }
        self.samples.iter().try_for_each(|rows| self.sample_rows(rows, memory, positions, tokens.per_request))
    }

    fn name(&self, value: &Value) -> String {
        self.names.get(&value.buffer).cloned().unwrap_or_else(|| format!("buffer {}", value.buffer.0))
    }

    fn positions(&self, positions: &[i32], per_request: usize) -> Result<(), LayoutError> {
        for (row, &found) in positions.iter().enumerate() {
            let limit = self.max_positions - 1;
            if usize::try_from(found).is_ok_and(|p| p > limit) {
                return Err(LayoutError::TooLong { row, limit, found });
            }
            let first = row % per_request == 0;
            let before = if first { -1 } else { positions[row - 1] };
            let expected = if first { found.max(-1) } else { before.saturating_add(1) };
            let padding = found == -1;
            if !padding && (found != expected || (!first && before == -1)) {
                let expected = if before == -1 { -1 } else { expected };
                return Err(LayoutError::Position { row, expected, found });
            }
        }
        Ok(())
    }

    /// Every id in range; the pages that a request reads are there, its own, and each at one place only.
    fn view(
        &self,
        view: &View,
        memory: &HostIo,
        live: &[&[i32]],
        owners: &dyn Owners,
    ) -> Result<(), LayoutError> {
        let Paged { table, width, page_rows, pages, .. } = view.paged;
        let name = || self.name(&table);
        for (request, row) in memory.host::<i32>(&table).chunks(width.max(1)).enumerate() {
            let outside = |id: &i32| usize::try_from(*id).map_or(true, |id| id >= pages);
            if let Some(column) = row.iter().position(outside) {
                return Err(LayoutError::PageRange {
                    table: name(),
                    request,
                    column,
                    pages,
                    found: row[column],
                });
            }
            for column in visible(live[request], view.ratio, page_rows) {
                let page = row.get(column).map_or(0, |&id| id as usize);
                if page == 0 {
                    return Err(LayoutError::NullPage { table: name(), request, column });
                }
                if !owners.reads(table.buffer, request, column, page) {
                    return Err(LayoutError::NotReadable { table: name(), request, column, page });
                }
            }
        }
        Ok(())
    }

    fn store(
        &self,
        store: &Store,
        memory: &HostIo,
        positions: &[i32],
        per_request: usize,
        owners: &dyn Owners,
    ) -> Result<(), LayoutError> {
        let slots: &[i64] = memory.host(&store.slots);
        let table: &[i32] = store.table.as_ref().map_or(&[], |t| memory.host(t));
        let mut written: Vec<(i64, usize)> = Vec::new();
        for (row, (&found, &position)) in slots.iter().zip(positions).enumerate() {
            let request = row / per_request;
            let expected = store.expected(position, table.get(request * store.width..).unwrap_or(&[]));
            // Without a table to read through, any page but the null page will do.
            let right =
                if store.table.is_some() || expected < 0 { found == expected } else { store.fits(found) };
            if !right {
                return Err(LayoutError::Slot {
                    slots: self.name(&store.slots),
                    row,
                    position,
                    expected,
                    found,
                });
            }
            if found >= 0 {
                let page = found as usize / store.page_rows;
                let owner = store.table.unwrap_or(store.slots).buffer;
                let column = position.max(0) as usize / store.ratio / store.page_rows;
                if !owners.writes(owner, request, column, page) {
                    return Err(LayoutError::NotWritable { slots: self.name(&store.slots), row, page });
                }
                written.push((found, row));
            }
        }
        written.sort_unstable();
        if let Some(pair) = written.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (slot, other, row) = (pair[0].0, pair[0].1, pair[1].1);
            return Err(LayoutError::SlotTwice { slots: self.name(&store.slots), row, other, slot });
        }
        self.seen_by_others(store, table, &written, per_request, positions)
    }

    /// A written page appears once among all that any request can see.
    fn seen_by_others(
        &self,
        store: &Store,
        table: &[i32],
        written: &[(i64, usize)],
        per_request: usize,
        positions: &[i32],
    ) -> Result<(), LayoutError> {
        // By page: the request that writes it, and whether it was seen.
        let mut pages: Vec<Option<(usize, bool)>> = vec![None; store.pages];
        for &(slot, row) in written {
            if let Some(page) = pages.get_mut(slot as usize / store.page_rows) {
                *page = Some((row / per_request, false));
            }
        }
        for (other, rows) in positions.chunks(per_request.max(1)).enumerate() {
            let ids = table.get(other * store.width..(other + 1) * store.width).unwrap_or(&[]);
            for column in visible(live(rows), store.ratio, store.page_rows) {
                let page = ids.get(column).map_or(0, |&id| id as usize);
                let Some(Some((request, seen))) = pages.get_mut(page) else { continue };
                if *request != other || std::mem::replace(seen, true) {
                    let table = store.table.as_ref().map_or_else(String::new, |t| self.name(t));
                    return Err(LayoutError::PageShared { table, page, request: *request, other });
                }
            }
        }
        Ok(())
    }

    fn state(
        &self,
        slots: &Value,
        limit: usize,
        memory: &HostIo,
        live: &[&[i32]],
    ) -> Result<(), LayoutError> {
        let mut owner: HashMap<i32, usize> = HashMap::new();
        for (request, &found) in memory.host::<i32>(slots).iter().enumerate() {
            let padded = live[request].is_empty() && found == -1;
            if padded {
                continue;
            }
            if usize::try_from(found).map_or(true, |slot| slot >= limit) {
                return Err(LayoutError::StateRange { slots: self.name(slots), request, limit, found });
            }
            if let Some(other) = owner.insert(found, request) {
                return Err(LayoutError::StateTwice { slots: self.name(slots), request, other, slot: found });
            }
        }
        Ok(())
    }

    /// A sample is of a token of its own request, and its position the one after: so it goes to a cell of the carry that
    /// this step does not read.
    fn sample_rows(
        &self,
        rows: &Value,
        memory: &HostIo,
        positions: &[i32],
        per_request: usize,
    ) -> Result<(), LayoutError> {
        let sampled = self.sampled.map(|(value, each)| (value, memory.host::<i32>(&value), each));
        for (sample, &found) in memory.host::<i32>(rows).iter().enumerate() {
            let row = usize::try_from(found).ok();
            let position = row.and_then(|row| positions.get(row)).copied().filter(|p| *p >= 0);
            let request = sampled.map_or(0, |(.., each)| sample / each);
            let own = sampled.is_none() || row.is_some_and(|row| row / per_request.max(1) == request);
            if found != -1 && !(position.is_some() && own) {
                return Err(LayoutError::SampleRow { rows: self.name(rows), sample, request, found });
            }
            let Some((value, all, each)) = sampled else { continue };
            let found = all.get(sample).copied().unwrap_or(-1);
            let expected = position.map_or(-1, |p| p + 1);
            let before = all.get(request * each..sample).unwrap_or(&[]);
            let alone = before.iter().all(|&other| other < 0 || (other - found) % 2 != 0);
            if found != -1 && (found != expected || !alone) {
                let expected = if alone { expected } else { -1 };
                let positions = self.name(&value);
                return Err(LayoutError::SamplePosition { positions, sample, request, expected, found });
            }
        }
        Ok(())
    }
}

impl Store {
    /// The slot that a position's row has by the page table; -1 if the token completes no row.
    fn expected(&self, position: i32, table: &[i32]) -> i64 {
        let Ok(position) = usize::try_from(position) else { return -1 };
        if (position + 1) % self.ratio != 0 {
            return -1;
        }
        let row = position / self.ratio;
        let page = table.get(row / self.page_rows).map_or(0, |&id| i64::from(id));
        page * self.page_rows as i64 + (row % self.page_rows) as i64
    }

    fn fits(&self, slot: i64) -> bool {
        usize::try_from(slot).is_ok_and(|s| (1..self.pages).contains(&(s / self.page_rows)))
    }
}

/// The tables that an operation reads, with the tokens that share a row.
fn views(op: &Op) -> Vec<View> {
    match op {
        Op::Attention(o) => {
            let compressed = match &o.compressed {
                Compressed::None => None,
                Compressed::Selected { rows, .. } => Some(View { paged: *rows, ratio: 4 }),
                Compressed::All { rows } => Some(View { paged: *rows, ratio: 128 }),
            };
            std::iter::once(View { paged: o.window, ratio: 1 }).chain(compressed).collect()
        }
        Op::IndexLogits(o) => vec![View { paged: o.keys, ratio: 4 }],
        _ => Vec::new(),
    }
}

/// Equal but for the pool.
fn alike(a: &View, b: &View) -> bool {
    a.ratio == b.ratio && Paged { pool: b.paged.pool, ..a.paged } == b.paged
}

fn check_stride(graph: &Graph, node: super::NodeId, paged: &Paged) -> Result<(), LayoutError> {
    let table = graph.buffer(paged.table.buffer);
    match table.shape.last() {
        Some(&expected) if expected != paged.width => Err(LayoutError::Stride {
            node: graph.label(node),
            table: table.name.clone(),
            expected,
            found: paged.width,
        }),
        _ => Ok(()),
    }
}

fn add<V: PartialEq>(all: &mut Vec<V>, one: V) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// A request's positions without its padding.
fn live(positions: &[i32]) -> &[i32] {
    let count = positions.iter().position(|p| *p < 0).unwrap_or(positions.len());
    &positions[..count]
}

/// The columns of its page table that a request reads or writes in this step.
fn visible(live: &[i32], ratio: usize, page_rows: usize) -> std::ops::Range<usize> {
    let (Some(&first), Some(&last)) = (live.first(), live.last()) else { return 0..0 };
    let (first, tokens) = (first as usize, last as usize + 1);
    let start = if ratio == 1 { first.saturating_sub(WINDOW - 1) / page_rows } else { 0 };
    start..(tokens / ratio).div_ceil(page_rows)
}
