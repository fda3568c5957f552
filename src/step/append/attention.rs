//! Appends what makes keys, queries and selections, and the attention over them.

use std::panic::Location;

use crate::ops::{
    Attention, Compress, Compressed, Dtype, HEAD_DIM, INDEX_DIM, IndexLogits, IndexQuery, IndexSelect,
    IndexStore, Op, Pooling, Query, RopeStore, StateLayout, TopK,
};
use crate::step::append::NormWeights;
use crate::step::builder::Inner;
use crate::step::handles::{Output, Rows, Settled, State, T, Tail, Weight};
use crate::step::lane::Lane;

/// Compressor weights beside its projection.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressWeights {
    pub ape: Weight,
    pub norm: NormWeights,
    pub rope: Weight,
    pub layout: StateLayout,
}

/// Encoded indexer query heads.
#[derive(Debug)]
pub struct IndexHeads<'s> {
    codes: T<'s>,
    scales: Option<T<'s>>,
    heads: usize,
}

/// The compressed rows that an attention reads.
#[derive(Clone, Copy, Debug)]
pub enum Compact<'a, 's> {
    None,
    Selected { settled: Settled<'s>, stored: &'a Rows<'s>, selected: &'a T<'s> },
    All { settled: Settled<'s>, stored: &'a Rows<'s> },
}

impl Inner {
    /// The operands of `compress` and `index_store`: projection and weights, the slots of states and rows, state and pool.
    fn pooling<'s>(
        &mut self,
        (at, op): (&Location<'_>, &str),
        (kvg, w): (&T<'s>, &CompressWeights),
        (state_slot, row_slot): (&T<'s>, &T<'s>),
        (state, tail): (State<'s>, &Tail<'s>),
    ) -> Pooling {
        self.same(at, &format!("{op}: columns of the projection"), w.layout.projection(), kvg.cols);
        self.same(at, &format!("{op}: elements of a state"), w.layout.len(), state.len);
        Pooling {
            tokens: self.tokens(at),
            kvg: kvg.value,
            ape: self.weight(&w.ape),
            norm: self.weight(&w.norm.gain),
            rope: self.weight(&w.rope),
            state_slot: state_slot.value,
            row_slot: row_slot.value,
            state: state.buffer,
            state_slots: state.slots,
            layout: w.layout,
            pool: tail.paged.pool,
            pages: tail.paged.pages,
            max_positions: w.rope.rows,
            eps: w.norm.eps,
        }
    }
}

impl<'s> Lane<'s> {
    #[track_caller]
    #[must_use]
    pub fn query(&mut self, q: &T<'s>, rope: &Weight, eps: f32) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        if !q.cols.is_multiple_of(HEAD_DIM) {
            inner.fail(at, format!("query: {} columns are no multiple of {HEAD_DIM}", q.cols));
        }
        let activation = inner.numerics.activation;
        let out = inner.transient("query", activation, q.rows, q.cols);
        let (heads, max_positions) = (q.cols / HEAD_DIM, rope.rows);
        let rope = inner.weight(rope);
        drop(inner);
        self.append(Op::Query(Query { tokens, q: q.value, rope, out, heads, max_positions, eps }));
        T::new(out, q.rows, q.cols)
    }

    /// Norms, rotates and stores each token's window row at `slot` (i64 `[T, 1]`).
    #[track_caller]
    #[must_use]
    pub fn rope_store(
        &mut self,
        kv: &T<'s>,
        norm: &NormWeights,
        rope: &Weight,
        slot: &T<'s>,
        tail: Tail<'s>,
    ) -> Rows<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, "rope_store: columns", HEAD_DIM, kv.cols);
        let op = RopeStore {
            tokens,
            kv: kv.value,
            norm: inner.weight(&norm.gain),
            rope: inner.weight(rope),
            slot: slot.value,
            pool: tail.paged.pool,
            pages: tail.paged.pages,
            format: inner.numerics.kv,
            trained: inner.numerics.trained,
            max_positions: rope.rows,
            eps: norm.eps,
        };
        drop(inner);
        self.append(Op::RopeStore(op));
        Rows::of(tail)
    }

    /// Pools tokens into compressed rows; `kvg` is f32 `[T, projection]`, `state_slot` i32 `[R, 1]`, `row_slot` i64 `[T, 1]`.
    #[track_caller]
    #[must_use]
    pub fn compress(
        &mut self,
        kvg: &T<'s>,
        w: &CompressWeights,
        state_slot: &T<'s>,
        row_slot: &T<'s>,
        state: State<'s>,
        tail: Tail<'s>,
    ) -> Rows<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let pooling = inner.pooling((at, "compress"), (kvg, w), (state_slot, row_slot), (state, &tail));
        let op = Compress {
            pooling,
            page_rows: tail.paged.page_rows,
            format: inner.numerics.kv,
            trained: inner.numerics.trained,
        };
        drop(inner);
        self.append(Op::Compress(op));
        Rows::of(tail)
    }

    /// As `compress` with ratio 4, then rotated and stored as index keys.
    #[track_caller]
    #[must_use]
    pub fn index_store(
        &mut self,
        kvg: &T<'s>,
        w: &CompressWeights,
        state_slot: &T<'s>,
        row_slot: &T<'s>,
        state: State<'s>,
        tail: Tail<'s>,
    ) -> Rows<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let pooling = inner.pooling((at, "index_store"), (kvg, w), (state_slot, row_slot), (state, &tail));
        let op = IndexStore { pooling, format: inner.numerics.index };
        drop(inner);
        self.append(Op::IndexStore(op));
        Rows::of(tail)
    }

    /// Rotates and encodes the indexer's query heads.
    #[track_caller]
    #[must_use]
    pub fn index_query(&mut self, q: &T<'s>, rope: &Weight) -> IndexHeads<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        if !q.cols.is_multiple_of(INDEX_DIM) {
            inner.fail(at, format!("index_query: {} columns are no multiple of {INDEX_DIM}", q.cols));
        }
        let (heads, format) = (q.cols / INDEX_DIM, inner.numerics.index);
        let (code_cols, scale_cols) = (heads * format.code_bytes(), heads * format.scale_bytes());
        let codes = inner.transient("index_query", Dtype::U8, q.rows, code_cols);
        let scales =
            (scale_cols > 0).then(|| inner.transient("index_query.scales", Dtype::U8, q.rows, scale_cols));
        let max_positions = rope.rows;
        let rope = inner.weight(rope);
        drop(inner);
        self.append(Op::IndexQuery(IndexQuery {
            tokens,
            q: q.value,
            rope,
            codes,
            scales,
            heads,
            format,
            max_positions,
        }));
        IndexHeads {
            codes: T::new(codes, q.rows, code_cols),
            scales: scales.map(|s| T::new(s, q.rows, scale_cols)),
            heads,
        }
    }

    /// Scores every visible index row: the settled ones and those that this step stored.
    #[track_caller]
    #[must_use]
    pub fn index_logits(
        &mut self,
        heads: &IndexHeads<'s>,
        weights: &T<'s>,
        settled: Settled<'s>,
        stored: &Rows<'s>,
    ) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, "index_logits: columns of the weights", heads.heads, weights.cols);
        inner.same(at, "index_logits: pool", settled.paged.pool.0 as usize, stored.pool.0 as usize);
        let cols = settled.paged.max_rows();
        let logits = inner.transient("index_logits", Dtype::F32, tokens.rows(), cols);
        #[allow(clippy::cast_precision_loss)]
        let scale = 1.0 / ((INDEX_DIM * heads.heads) as f32).sqrt();
        let op = IndexLogits {
            tokens,
            codes: heads.codes.value,
            scales: heads.scales.as_ref().map(T::value),
            weights: weights.value,
            keys: settled.paged,
            logits,
            heads: heads.heads,
            format: inner.numerics.index,
            scale,
        };
        drop(inner);
        self.append(Op::IndexLogits(op));
        T::new(logits, tokens.rows(), cols)
    }

    /// The best rows of each query, into an output that later operations may read.
    #[track_caller]
    #[must_use]
    pub fn topk(&mut self, logits: &T<'s>, selected: Output<'s>) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, "topk: rows of the output", tokens.rows(), selected.rows);
        drop(inner);
        let (width, k) = (logits.cols, selected.cols);
        let result = T::new(selected.value, selected.rows, k);
        self.append(Op::TopK(TopK { tokens, logits: logits.value, width, selected: selected.value, k }));
        result
    }

    /// What `topk` of `index_logits` would choose, in one launch and without logits.
    #[track_caller]
    #[must_use]
    pub fn index_select(
        &mut self,
        heads: &IndexHeads<'s>,
        weights: &T<'s>,
        settled: Settled<'s>,
        stored: &Rows<'s>,
        selected: Output<'s>,
    ) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, "index_select: columns of the weights", heads.heads, weights.cols);
        inner.same(at, "index_select: pool", settled.paged.pool.0 as usize, stored.pool.0 as usize);
        inner.same(at, "index_select: rows of the output", tokens.rows(), selected.rows);
        #[allow(clippy::cast_precision_loss)]
        let scale = 1.0 / ((INDEX_DIM * heads.heads) as f32).sqrt();
        let op = IndexSelect {
            tokens,
            codes: heads.codes.value,
            scales: heads.scales.as_ref().map(T::value),
            weights: weights.value,
            keys: settled.paged,
            selected: selected.value,
            k: selected.cols,
            heads: heads.heads,
            format: inner.numerics.index,
            scale,
        };
        drop(inner);
        self.append(Op::IndexSelect(op));
        T::new(selected.value, selected.rows, selected.cols)
    }

    #[track_caller]
    #[must_use]
    pub fn attention(
        &mut self,
        q: &T<'s>,
        (window, stored): (Settled<'s>, &Rows<'s>),
        compact: Compact<'_, 's>,
        sink: &Weight,
        rope: &Weight,
    ) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let heads = q.cols / HEAD_DIM;
        inner.same(at, "attention: sinks", heads, sink.cols);
        inner.same(at, "attention: window pool", window.paged.pool.0 as usize, stored.pool.0 as usize);
        let compressed = match compact {
            Compact::None => Compressed::None,
            Compact::Selected { settled, stored, selected } => {
                inner.same(at, "attention: row pool", settled.paged.pool.0 as usize, stored.pool.0 as usize);
                Compressed::Selected { rows: settled.paged, selected: selected.value, k: selected.cols }
            }
            Compact::All { settled, stored } => {
                inner.same(at, "attention: row pool", settled.paged.pool.0 as usize, stored.pool.0 as usize);
                Compressed::All { rows: settled.paged }
            }
        };
        let activation = inner.numerics.activation;
        let out = inner.transient("attention", activation, q.rows, q.cols);
        #[allow(clippy::cast_precision_loss)]
        let scale = 1.0 / (HEAD_DIM as f32).sqrt();
        let op = Attention {
            tokens,
            q: q.value,
            window: window.paged,
            compressed,
            sink: inner.weight(sink),
            rope: inner.weight(rope),
            out,
            heads,
            format: inner.numerics.kv,
            max_positions: rope.rows,
            scale,
        };
        drop(inner);
        self.append(Op::Attention(op));
        T::new(out, q.rows, q.cols)
    }
}
