//! Which bytes a node touches for given inputs: a subset of its regions, exact where an input decides it (page tables,
//! slots, positions, selected rows). Footprint tests, canaries and transfer manifests go by it; the proof does not.
//!
//! Dense operands count as touched whole, padded rows included, and weights too but where one row of a table is looked up.

mod compressor;

use std::ops::Range;

use self::compressor::live;
use super::{
    Access, Attention, BufferId, Carry, Compressed, Dtype, Embed, IndexLogits, IndexSelect, Mode, Op,
    PAGE_ROWS, Paged, Part, ROPE_DIM, RopeStore, Sample, Tokens, TopK, Value, WINDOW,
};

/// What memory holds when a node begins.
pub trait Contents {
    /// The bytes of a value; `None` if they are not known, as for results of a step that has not run.
    fn bytes(&self, value: &Value) -> Option<&[u8]>;
}

/// An input that decides what is touched is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: the contents of buffer {} are not known", buffer.0)]
pub struct UnknownContents {
    pub op: &'static str,
    pub buffer: BufferId,
}

/// Bytes of a buffer that a node reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    pub buffer: BufferId,
    pub mode: Mode,
    /// The part of a pool or state that the rows belong to.
    pub rows: Rows,
    /// Sorted, disjoint, none empty.
    pub ranges: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Plain bytes of a value.
    None,
    Settled,
    Tail,
}

impl Op {
    /// The bytes that this node touches with these inputs.
    ///
    /// # Errors
    /// [`UnknownContents`] if a position, slot or table is not known.
    pub fn touched(&self, contents: &dyn Contents) -> Result<Vec<Touched>, UnknownContents> {
        let mut touch = Touch { op: self.name(), contents, all: Vec::new() };
        match self {
            Self::Embed(op) => touch.embed(op)?,
            Self::HyperHead(op) => {
                let rows = touch.i32s(&op.rows)?;
                touch.lookup(&op.streams, op.tokens.rows(), rows.iter().copied());
            }
            Self::Query(op) => touch.rope(&op.tokens, &op.rope, op.max_positions)?,
            Self::IndexQuery(op) => touch.rope(&op.tokens, &op.rope, op.max_positions)?,
            Self::RopeStore(op) => touch.rope_store(op)?,
            Self::Compress(op) => {
                let row = |slot| kv_row(op.format, slot, op.page_rows);
                touch.pooling(&op.pooling, op.page_rows, &row)?;
            }
            Self::IndexStore(op) => {
                touch.pooling(&op.pooling, PAGE_ROWS, &|slot| index_row(op.format, slot))?;
            }
            Self::IndexLogits(op) => touch.index_logits(op)?,
            Self::TopK(op) => touch.topk(op)?,
            Self::IndexSelect(op) => touch.index_select(op)?,
            Self::Attention(op) => touch.attention(op)?,
            Self::Sample(op) => touch.sample(op)?,
            Self::HyperPre(_)
            | Self::HyperPost(_)
            | Self::RmsNorm(_)
            | Self::Linear(_)
            | Self::Router(_)
            | Self::ExpertsUp(_)
            | Self::ExpertsDown(_) => {}
        }
        Ok(touch.with_dense(&self.regions()))
    }
}

/// Bytes of a pool row, the scales apart from the codes.
type RowBytes = [Range<usize>; 2];

fn kv_row(format: crate::format::kv_row::KvFormat, slot: usize, page_rows: usize) -> RowBytes {
    let (data, scales) = format.row_ranges(slot % page_rows, page_rows);
    in_page(slot / page_rows * format.page_bytes(page_rows), data, scales)
}

fn index_row(format: crate::format::index_row::IndexFormat, slot: usize) -> RowBytes {
    let (data, scales) = format.row_ranges(slot % PAGE_ROWS, PAGE_ROWS);
    in_page(slot / PAGE_ROWS * format.page_bytes(PAGE_ROWS), data, scales)
}

fn in_page(page: usize, data: Range<usize>, scales: Range<usize>) -> RowBytes {
    [data, scales].map(|r| page + r.start..page + r.end)
}

/// A paged pool as one request sees it in this step.
struct Seen<'a> {
    paged: &'a Paged,
    request: usize,
    /// Rows from here on are this step's.
    settled: usize,
    bytes: &'a dyn Fn(usize) -> RowBytes,
}

struct Touch<'c> {
    op: &'static str,
    contents: &'c dyn Contents,
    all: Vec<Touched>,
}

impl Touch<'_> {
    fn known(&self, value: &Value) -> Result<&[u8], UnknownContents> {
        let unknown = UnknownContents { op: self.op, buffer: value.buffer };
        self.contents.bytes(value).and_then(|b| b.get(..value.bytes())).ok_or(unknown)
    }

    fn i32s(&self, value: &Value) -> Result<Vec<i32>, UnknownContents> {
        Ok(self.known(value)?.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }

    fn i64s(&self, value: &Value) -> Result<Vec<i64>, UnknownContents> {
        Ok(self.known(value)?.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect())
    }

    fn add(
        &mut self,
        buffer: BufferId,
        mode: Mode,
        rows: Rows,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) {
        let same = |t: &&mut Touched| t.buffer == buffer && t.mode == mode && t.rows == rows;
        match self.all.iter_mut().find(same) {
            Some(known) => known.ranges.extend(ranges),
            None => self.all.push(Touched { buffer, mode, rows, ranges: ranges.into_iter().collect() }),
        }
    }

    /// Rows of a dense table of `rows`; what is no row is not read.
    fn lookup(&mut self, table: &Value, rows: usize, ids: impl IntoIterator<Item = i32>) {
        let bytes = table.bytes() / rows.max(1);
        let ids = ids.into_iter().filter_map(|id| usize::try_from(id).ok().filter(|id| *id < rows));
        let ranges: Vec<_> = ids.map(|id| id * bytes..(id + 1) * bytes).collect();
        self.add(table.buffer, Mode::Read, Rows::None, ranges);
    }

    fn rope(&mut self, tokens: &Tokens, rope: &Value, max_positions: usize) -> Result<(), UnknownContents> {
        debug_assert_eq!(rope.bytes(), max_positions * ROPE_DIM * 4);
        let positions = self.i32s(&tokens.position)?;
        self.lookup(rope, max_positions, positions);
        Ok(())
    }

    fn embed(&mut self, op: &Embed) -> Result<(), UnknownContents> {
        let (mut tokens, positions) = (self.i32s(&op.token)?, self.i32s(&op.tokens.position)?);
        let slots = self.i32s(&op.carry.slot)?;
        let carried = Value { buffer: op.carry.state, dtype: Dtype::I32, len: op.carry.slots * Carry::CELLS };
        let carried = self.i32s(&carried).ok();
        let (mut cells, mut known) = (Vec::new(), true);
        for (t, token) in tokens.iter_mut().enumerate().filter(|(_, token)| **token == Embed::CARRIED) {
            let position = positions.get(t).and_then(|&p| usize::try_from(p).ok());
            let slot = slots.get(t / op.tokens.per_request.max(1)).copied().unwrap_or(-1);
            let Some(cell) = position.and_then(|p| op.carry.cell(slot, p)) else { continue };
            cells.push(cell * 4..(cell + 1) * 4);
            *token = carried.as_ref().map_or(-1, |all| all[cell]);
            known &= carried.is_some();
        }
        self.add(op.carry.state, Mode::Read, Rows::Settled, cells);
        // Which row a carried token names is known only once the step before has run.
        if known {
            self.lookup(&op.weight, op.vocab, tokens);
        }
        Ok(())
    }

    fn sample(&mut self, op: &Sample) -> Result<(), UnknownContents> {
        let (positions, slots) = (self.i32s(&op.position)?, self.i32s(&op.carry.slot)?);
        let cell = |(s, &position): (usize, &i32)| {
            let slot = slots.get(op.request(s)).copied().unwrap_or(-1);
            op.carry.cell(slot, usize::try_from(position).ok()?).map(|cell| cell * 4..(cell + 1) * 4)
        };
        let cells: Vec<_> = positions.iter().enumerate().filter_map(cell).collect();
        self.add(op.carry.state, Mode::Write, Rows::Tail, cells);
        Ok(())
    }

    fn rope_store(&mut self, op: &RopeStore) -> Result<(), UnknownContents> {
        self.rope(&op.tokens, &op.rope, op.max_positions)?;
        let slots = self.i64s(&op.slot)?;
        let row = |slot| kv_row(op.format, slot, PAGE_ROWS);
        self.store(op.pool, &slots, op.pages * PAGE_ROWS, &row);
        Ok(())
    }

    fn store(&mut self, pool: BufferId, slots: &[i64], rows: usize, row: &dyn Fn(usize) -> RowBytes) {
        let slots = slots.iter().filter_map(|&s| usize::try_from(s).ok().filter(|s| *s < rows));
        let ranges: Vec<_> = slots.flat_map(row).collect();
        self.add(pool, Mode::Write, Rows::Tail, ranges);
    }

    fn index_logits(&mut self, op: &IndexLogits) -> Result<(), UnknownContents> {
        let positions = self.i32s(&op.tokens.position)?;
        self.columns(&op.logits, Mode::Write, op.keys.max_rows(), &positions, |p| (p + 1) / 4);
        self.index_keys(op, 0)
    }

    fn index_select(&mut self, op: &IndexSelect) -> Result<(), UnknownContents> {
        self.index_keys(&op.scores(), op.k)
    }

    /// The keys that each request scores, where it sees more than `unscored` of them.
    fn index_keys(&mut self, op: &IndexLogits, unscored: usize) -> Result<(), UnknownContents> {
        let positions = self.i32s(&op.tokens.position)?;
        let row = |slot| index_row(op.format, slot);
        for (request, rows) in positions.chunks(op.tokens.per_request.max(1)).enumerate() {
            let live = live(rows);
            let seen = Seen { paged: &op.keys, request, settled: live.start / 4, bytes: &row };
            if (live.end / 4).min(op.keys.max_rows()) > unscored {
                self.pages(&seen, 0..live.end / 4)?;
            }
        }
        Ok(())
    }

    fn topk(&mut self, op: &TopK) -> Result<(), UnknownContents> {
        let positions = self.i32s(&op.tokens.position)?;
        let visible = |p: usize| if (p + 1) / 4 > op.k { (p + 1) / 4 } else { 0 };
        self.columns(&op.logits, Mode::Read, op.width, &positions, visible);
        Ok(())
    }

    /// The leading elements of each row of an f32 matrix.
    fn columns(
        &mut self,
        of: &Value,
        mode: Mode,
        width: usize,
        positions: &[i32],
        count: impl Fn(usize) -> usize,
    ) {
        let row = |(t, &p): (usize, &i32)| {
            let count = usize::try_from(p).map_or(0, &count).min(width);
            t * width * 4..(t * width + count) * 4
        };
        let ranges: Vec<_> = positions.iter().enumerate().map(row).collect();
        self.add(of.buffer, mode, Rows::None, ranges);
    }

    fn attention(&mut self, op: &Attention) -> Result<(), UnknownContents> {
        self.rope(&op.tokens, &op.rope, op.max_positions)?;
        let positions = self.i32s(&op.tokens.position)?;
        for (request, rows) in positions.chunks(op.tokens.per_request.max(1)).enumerate() {
            let live = live(rows);
            if live.is_empty() {
                continue;
            }
            let window = |slot| kv_row(op.format, slot, op.window.page_rows);
            let seen = Seen { paged: &op.window, request, settled: live.start, bytes: &window };
            self.pages(&seen, live.start.saturating_sub(WINDOW - 1)..live.end)?;
            self.compressed(op, request, &live)?;
        }
        Ok(())
    }

    fn compressed(
        &mut self,
        op: &Attention,
        request: usize,
        live: &Range<usize>,
    ) -> Result<(), UnknownContents> {
        let (paged, ratio) = match &op.compressed {
            Compressed::None => return Ok(()),
            Compressed::Selected { rows, .. } => (rows, 4),
            Compressed::All { rows } => (rows, 128),
        };
        let bytes = |slot| kv_row(op.format, slot, paged.page_rows);
        let seen = Seen { paged, request, settled: live.start / ratio, bytes: &bytes };
        let all = 0..live.end / ratio;
        let Compressed::Selected { selected, k, .. } = &op.compressed else { return self.pages(&seen, all) };
        let Ok(ids) = self.i32s(selected) else { return self.pages(&seen, all) };
        let first = request * op.tokens.per_request;
        for (t, position) in live.clone().enumerate() {
            let ids = &ids[(first + t) * k..(first + t + 1) * k];
            let visible = ids.iter().filter_map(|&id| usize::try_from(id).ok());
            let visible: Vec<_> = visible.filter(|&i| i < (position + 1) / ratio).collect();
            self.pages(&seen, visible)?;
        }
        Ok(())
    }

    /// Reads of pool rows through the page table; rows on masked pages are not read.
    fn pages(
        &mut self,
        seen: &Seen<'_>,
        rows: impl IntoIterator<Item = usize>,
    ) -> Result<(), UnknownContents> {
        let table = self.i32s(&seen.paged.table)?;
        let Paged { width, page_rows, pages, pool, .. } = *seen.paged;
        let (mut settled, mut tail) = (Vec::new(), Vec::new());
        for row in rows.into_iter().filter(|row| row / page_rows < width) {
            let id = table.get(seen.request * width + row / page_rows).copied().unwrap_or(0);
            if let Some(page) = usize::try_from(id).ok().filter(|id| (1..pages).contains(id)) {
                let part = if row < seen.settled { &mut settled } else { &mut tail };
                part.extend((seen.bytes)(page * page_rows + row % page_rows));
            }
        }
        self.add(pool, Mode::Read, Rows::Settled, settled);
        self.add(pool, Mode::Read, Rows::Tail, tail);
        Ok(())
    }

    /// Adds what nothing above narrowed, whole.
    fn with_dense(mut self, regions: &[Access]) -> Vec<Touched> {
        for Access { region, mode } in regions {
            if let Part::Bytes(range) = &region.part {
                let narrowed =
                    self.all.iter().any(|t| (t.buffer, t.mode, t.rows) == (region.buffer, *mode, Rows::None));
                if !narrowed {
                    self.add(region.buffer, *mode, Rows::None, [range.clone()]);
                }
            }
        }
        for touched in &mut self.all {
            coalesce(&mut touched.ranges);
        }
        self.all.retain(|t| !t.ranges.is_empty());
        self.all
    }
}

fn coalesce(ranges: &mut Vec<Range<usize>>) {
    ranges.retain(|r| !r.is_empty());
    ranges.sort_by_key(|r| (r.start, r.end));
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
}
