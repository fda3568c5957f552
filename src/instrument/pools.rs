//! What the instruments know of the cache: each layer's pools, with the bytes of every row.

use std::ops::Range;

use super::hash::WORD;
use crate::model::{CacheLayout, LayerCache};
use crate::ops::{BLOCK_TOKENS, Op, PAGE_ROWS};
use crate::step::{Class, Graph, PoolId, PoolSpec};

/// What a pool's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The window's keys and values, a row per token.
    Window,
    /// Compressed keys and values, a row per 4 or 128 tokens.
    Rows,
    /// Index keys, a row per 4 tokens.
    Index,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Window, Self::Rows, Self::Index];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Rows => "rows",
            Self::Index => "index",
        }
    }
}

/// One pool of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub id: PoolId,
    pub name: String,
    pub layer: usize,
    pub role: Role,
    /// Tokens of one row.
    pub ratio: usize,
    pub pages: usize,
    pub page_rows: usize,
    pub page_bytes: usize,
    /// Bytes of each row in its page: data, then scales; empty ranges are left out.
    rows: Vec<Vec<Range<usize>>>,
    /// Bytes of a page that belong to no row.
    padding: Vec<Range<usize>>,
}

impl Pool {
    fn new(
        spec: &PoolSpec,
        (layer, role, ratio): (usize, Role, usize),
        rows: RowRanges<'_>,
    ) -> Result<Self, String> {
        let ranges = |row| {
            let (data, scales) = rows(row, spec.page_rows);
            [data, scales].into_iter().filter(|r| !r.is_empty()).collect::<Vec<_>>()
        };
        let rows: Vec<_> = (0..spec.page_rows).map(ranges).collect();
        let padding = gaps(&rows, spec.page_bytes);
        let odd = rows.iter().flatten().chain(&padding).find(|r| r.start % WORD != 0 || r.end % WORD != 0);
        if let Some(Range { start, end }) = odd {
            let name = &spec.name;
            return Err(format!(
                "{name}: expected rows of whole {WORD}-byte words, found bytes {start}..{end}"
            ));
        }
        let PoolSpec { id, name, pages, page_rows, page_bytes } = spec.clone();
        Ok(Self { id, name, layer, role, ratio, pages, page_rows, page_bytes, rows, padding })
    }

    /// Bytes of a row in its page.
    #[must_use]
    pub fn row(&self, row: usize) -> &[Range<usize>] {
        &self.rows[row % self.page_rows]
    }

    /// How many those are.
    #[must_use]
    pub fn row_bytes(&self, row: usize) -> usize {
        self.row(row).iter().map(Range::len).sum()
    }

    /// The row that a byte of a page belongs to; `None` for padding.
    #[must_use]
    pub fn row_at(&self, byte: usize) -> Option<usize> {
        self.rows.iter().position(|ranges| ranges.iter().any(|r| r.contains(&byte)))
    }

    pub(super) fn padding(&self) -> &[Range<usize>] {
        &self.padding
    }

    /// Tokens of one page.
    #[must_use]
    pub const fn page_tokens(&self) -> usize {
        self.page_rows * self.ratio
    }
}

/// How a format places a row in a page of so many.
type RowRanges<'a> = &'a dyn Fn(usize, usize) -> (Range<usize>, Range<usize>);

/// What no row covers.
fn gaps(rows: &[Vec<Range<usize>>], page_bytes: usize) -> Vec<Range<usize>> {
    let mut covered: Vec<Range<usize>> = rows.iter().flatten().cloned().collect();
    covered.sort_by_key(|r| r.start);
    covered.push(page_bytes..page_bytes);
    let mut end = 0;
    let mut gaps = Vec::new();
    for range in covered {
        if range.start > end {
            gaps.push(end..range.start);
        }
        end = end.max(range.end);
    }
    gaps
}

/// Every pool, by [`PoolId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    all: Vec<Pool>,
}

impl Pools {
    /// The pools of `layout`, with row formats as the operations of `graph`, one of its steps, have them.
    ///
    /// # Errors
    /// A sentence: rows that are not whole words, or a pool that no operation of the step stores to.
    pub fn of(layout: &CacheLayout, graph: &Graph) -> Result<Self, String> {
        let mut all = Vec::new();
        for (layer, LayerCache { window, rows, index }) in layout.layers.iter().enumerate() {
            let pools = [
                Some((window, Role::Window)),
                rows.as_ref().map(|(pool, _)| (pool, Role::Rows)),
                index.as_ref().map(|(pool, _)| (pool, Role::Index)),
            ];
            for (spec, role) in pools.into_iter().flatten() {
                let tokens = if role == Role::Window { PAGE_ROWS } else { BLOCK_TOKENS };
                let what = (layer, role, tokens / spec.page_rows.max(1));
                let stored = graph.nodes.iter().find(|n| stores_to(graph, &n.op) == Some(spec.id));
                all.push(match stored.map(|n| &n.op) {
                    Some(Op::RopeStore(o)) => Pool::new(spec, what, &|r, n| o.format.row_ranges(r, n)),
                    Some(Op::Compress(o)) => Pool::new(spec, what, &|r, n| o.format.row_ranges(r, n)),
                    Some(Op::IndexStore(o)) => Pool::new(spec, what, &|r, n| o.format.row_ranges(r, n)),
                    _ => Err(format!("{}: no operation of the step stores to this pool", spec.name)),
                }?);
            }
        }
        all.sort_by_key(|pool| pool.id);
        Ok(Self { all })
    }

    /// In the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.all.iter()
    }

    #[must_use]
    pub fn get(&self, id: PoolId) -> Option<&Pool> {
        self.all.get(id.0 as usize)
    }
}

/// The pool that an operation stores rows to.
pub(super) fn stores_to(graph: &Graph, op: &Op) -> Option<PoolId> {
    let buffer = match op {
        Op::RopeStore(o) => o.pool,
        Op::Compress(o) => o.pooling.pool,
        Op::IndexStore(o) => o.pooling.pool,
        _ => return None,
    };
    match graph.buffer(buffer).class {
        Class::Pool(id) => Some(id),
        _ => None,
    }
}
