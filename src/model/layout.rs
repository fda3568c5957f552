//! Which pools and states a model needs, and how large they are.

use super::weights::ModelWeights;
use crate::ops::{BLOCK_TOKENS, Carry, HEAD_DIM, INDEX_DIM, PAGE_ROWS};
use crate::step::{Numerics, PoolId, PoolSpec, StateId, StateSpec};

/// How much cache there is. Page 0 of every pool is the null page: reserved, never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheSize {
    /// Pages of 64 window rows, the null page included.
    pub window_pages: usize,
    /// Pages of 256 tokens' compressed rows, the null page included.
    pub blocks: usize,
    /// Per-request state slots.
    pub slots: usize,
}

/// Pools and states of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerCache {
    pub window: PoolSpec,
    /// Compressed rows and the compressor's state.
    pub rows: Option<(PoolSpec, StateSpec)>,
    /// Index keys and their compressor's state.
    pub index: Option<(PoolSpec, StateSpec)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    pub size: CacheSize,
    pub layers: Vec<LayerCache>,
    /// The newest token of each request.
    pub carry: StateSpec,
}

impl CacheLayout {
    #[must_use]
    pub fn new(weights: &ModelWeights, numerics: Numerics, size: CacheSize) -> Self {
        let mut ids = Ids { pools: 0, states: 0, size };
        let layers = weights.layers.iter().enumerate().map(|(l, w)| {
            let window_bytes = numerics.kv.page_bytes(PAGE_ROWS);
            let window = ids.pool(format!("layers.{l}.window"), size.window_pages, PAGE_ROWS, window_bytes);
            let rows = w.attention.compressor.as_ref().map(|(_, c)| {
                let page_rows = BLOCK_TOKENS / c.layout.ratio;
                let bytes = numerics.kv.page_bytes(page_rows);
                let pool = ids.pool(format!("layers.{l}.rows"), size.blocks, page_rows, bytes);
                debug_assert_eq!(c.layout.width, HEAD_DIM);
                (pool, ids.state(format!("layers.{l}.state"), c.layout.len()))
            });
            let index = w.attention.indexer.as_ref().map(|i| {
                let bytes = numerics.index.page_bytes(PAGE_ROWS);
                let pool = ids.pool(format!("layers.{l}.index"), size.blocks, PAGE_ROWS, bytes);
                debug_assert_eq!(i.compressor.layout.width, INDEX_DIM);
                (pool, ids.state(format!("layers.{l}.index_state"), i.compressor.layout.len()))
            });
            LayerCache { window, rows, index }
        });
        let layers = layers.collect();
        Self { size, layers, carry: ids.state("carry".to_owned(), Carry::CELLS) }
    }

    /// Every pool, in the order of their ids.
    pub fn pools(&self) -> impl Iterator<Item = &PoolSpec> {
        self.layers.iter().flat_map(|c| {
            let rows = c.rows.iter().map(|(pool, _)| pool);
            std::iter::once(&c.window).chain(rows).chain(c.index.iter().map(|(pool, _)| pool))
        })
    }

    /// Every state, in the order of their ids.
    pub fn states(&self) -> impl Iterator<Item = &StateSpec> {
        let layers = self.layers.iter().flat_map(|c| c.rows.iter().chain(&c.index).map(|(_, state)| state));
        layers.chain([&self.carry])
    }
}

struct Ids {
    pools: u32,
    states: u32,
    size: CacheSize,
}

impl Ids {
    fn pool(&mut self, name: String, pages: usize, page_rows: usize, page_bytes: usize) -> PoolSpec {
        self.pools += 1;
        PoolSpec { id: PoolId(self.pools - 1), name, pages, page_rows, page_bytes }
    }

    fn state(&mut self, name: String, len: usize) -> StateSpec {
        self.states += 1;
        StateSpec { id: StateId(self.states - 1), name, slots: self.size.slots, len }
    }
}
