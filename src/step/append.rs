//! The operations as methods of a lane: each checks its shapes, makes its output and appends one launch.

use std::panic::Location;

use super::builder::{Inner, Output, Rows, Settled, State, T, Tail, Weight};
use super::graph::Class;
use super::lane::Lane;
use crate::ops::{
    Attention, Compress, Compressed, Dtype, Embed, Epilogue, ExpertsDown, ExpertsUp, HEAD_DIM, HyperHead,
    HyperPost, HyperPre, INDEX_DIM, IndexLogits, IndexQuery, IndexStore, Linear, Op, Query, RmsNorm,
    RopeStore, Router, Routing, Sample, StateLayout, Tokens, TopK, Value,
};

/// Hyper-connection weights of one sublayer (or of the head).
#[derive(Clone, Debug, PartialEq)]
pub struct HyperWeights {
    pub mix: Weight,
    pub base: Weight,
    pub scale: Weight,
    pub streams: usize,
    pub sinkhorn_iters: usize,
    pub eps: f32,
    pub hc_eps: f32,
}

/// A norm's gain and epsilon.
#[derive(Clone, Debug, PartialEq)]
pub struct NormWeights {
    pub gain: Weight,
    pub eps: f32,
}

/// Compressor weights beside its projection.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressWeights {
    pub ape: Weight,
    pub norm: NormWeights,
    pub rope: Weight,
    pub layout: StateLayout,
}

/// A sublayer's input and the way back from its output.
#[derive(Debug)]
pub struct Mixed<'s> {
    pub x: T<'s>,
    post: T<'s>,
    comb: T<'s>,
}

/// Encoded indexer query heads.
#[derive(Debug)]
pub struct IndexHeads<'s> {
    codes: T<'s>,
    scales: Option<T<'s>>,
    heads: usize,
}

/// Chosen experts and their weights, `[T, k]` each.
#[derive(Debug)]
pub struct Routed<'s> {
    pub ids: T<'s>,
    weights: T<'s>,
    k: usize,
    experts: usize,
}

/// The compressed rows that an attention reads.
#[derive(Clone, Copy, Debug)]
pub enum Compact<'a, 's> {
    None,
    Selected { settled: Settled<'s>, stored: &'a Rows<'s>, selected: &'a T<'s> },
    All { settled: Settled<'s>, stored: &'a Rows<'s> },
}

/// Where scored or hashed routing gets its choice from.
#[derive(Clone, Copy, Debug)]
pub enum RouteBy<'a, 's> {
    Score { bias: &'a Weight },
    Hash { table: &'a Weight, token: &'a T<'s> },
}

/// Per-sample parameters, inputs of the step.
#[derive(Debug)]
pub struct SampleParams<'s> {
    pub temperature: T<'s>,
    pub top_p: T<'s>,
    pub min_p: T<'s>,
    pub top_k: T<'s>,
    pub seed: T<'s>,
    pub position: T<'s>,
}

impl Inner {
    fn transient(&mut self, name: &str, dtype: Dtype, rows: usize, cols: usize) -> Value {
        let index = self.graph.nodes.len();
        self.value(format!("{name}#{index}"), Class::Transient, dtype, rows, cols)
    }

    fn same(&mut self, at: &Location<'_>, what: &str, expected: usize, found: usize) {
        if expected != found {
            self.fail(at, format!("{what}: expected {expected}, found {found}"));
        }
    }

    fn tokens(&mut self, at: &Location<'_>) -> Tokens {
        self.tokens.unwrap_or_else(|| {
            self.fail(at, "operations come after Root::tokens".to_owned());
            let position = Value { buffer: crate::ops::BufferId(u32::MAX), dtype: Dtype::I32, len: 0 };
            Tokens { requests: 0, per_request: 0, position }
        })
    }
}

impl<'s> Lane<'s> {
    /// Embeds the tokens (i32 `[T, 1]`) into `streams` equal residual streams.
    #[track_caller]
    #[must_use]
    pub fn embed(&mut self, token: &T<'s>, weight: &Weight, streams: usize) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, "embed: tokens", tokens.rows(), token.rows);
        let (dtype, cols) = (inner.numerics.activation, streams * weight.cols);
        let out = inner.transient("embed", dtype, tokens.rows(), cols);
        let (vocab, hidden) = (weight.rows, weight.cols);
        let weight = inner.weight(weight);
        drop(inner);
        self.append(Op::Embed(Embed { tokens, token: token.value, weight, out, vocab, hidden, streams }));
        T::new(out, tokens.rows(), cols)
    }

    #[track_caller]
    #[must_use]
    pub fn hyper_pre(&mut self, streams: &T<'s>, w: &HyperWeights, norm: &NormWeights) -> Mixed<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (rows, n) = (tokens.rows(), w.streams);
        let hidden = norm.gain.cols;
        inner.same(at, "hyper_pre: columns of the streams", n * hidden, streams.cols);
        inner.same(at, "hyper_pre: columns of the mix", n * hidden, w.mix.cols);
        inner.same(at, "hyper_pre: rows of the mix", (2 + n) * n, w.mix.rows);
        let activation = inner.numerics.activation;
        let out = inner.transient("hyper_pre", activation, rows, hidden);
        let post = inner.transient("hyper_pre.post", Dtype::F32, rows, n);
        let comb = inner.transient("hyper_pre.comb", Dtype::F32, rows, n * n);
        let op = HyperPre {
            tokens,
            streams: streams.value,
            mix: inner.weight(&w.mix),
            base: inner.weight(&w.base),
            scale: inner.weight(&w.scale),
            norm: inner.weight(&norm.gain),
            out,
            post,
            comb,
            n,
            hidden,
            sinkhorn_iters: w.sinkhorn_iters,
            eps: norm.eps,
            hc_eps: w.hc_eps,
        };
        drop(inner);
        self.append(Op::HyperPre(op));
        Mixed { x: T::new(out, rows, hidden), post: T::new(post, rows, n), comb: T::new(comb, rows, n * n) }
    }

    #[track_caller]
    #[must_use]
    pub fn hyper_post(&mut self, streams: &T<'s>, y: &T<'s>, mixed: &Mixed<'s>) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (n, hidden) = (mixed.post.cols, y.cols);
        inner.same(at, "hyper_post: columns of the streams", n * hidden, streams.cols);
        let activation = inner.numerics.activation;
        let out = inner.transient("hyper_post", activation, tokens.rows(), streams.cols);
        drop(inner);
        self.append(Op::HyperPost(HyperPost {
            tokens,
            streams: streams.value,
            y: y.value,
            post: mixed.post.value,
            comb: mixed.comb.value,
            out,
            n,
            hidden,
        }));
        T::new(out, tokens.rows(), streams.cols)
    }

    /// Mixes the streams of the rows named by `rows` (i32 `[samples, 1]`) and norms them.
    #[track_caller]
    #[must_use]
    pub fn hyper_head(
        &mut self,
        streams: &T<'s>,
        rows: &T<'s>,
        w: &HyperWeights,
        norm: &NormWeights,
    ) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let hidden = norm.gain.cols;
        inner.same(at, "hyper_head: columns of the streams", w.streams * hidden, streams.cols);
        let activation = inner.numerics.activation;
        let out = inner.transient("hyper_head", activation, rows.rows, hidden);
        let op = HyperHead {
            tokens,
            streams: streams.value,
            rows: rows.value,
            mix: inner.weight(&w.mix),
            base: inner.weight(&w.base),
            scale: inner.weight(&w.scale),
            norm: inner.weight(&norm.gain),
            out,
            samples: rows.rows,
            n: w.streams,
            hidden,
            eps: norm.eps,
            hc_eps: w.hc_eps,
        };
        drop(inner);
        self.append(Op::HyperHead(op));
        T::new(out, rows.rows, hidden)
    }

    #[track_caller]
    #[must_use]
    pub fn rmsnorm(&mut self, x: &T<'s>, norm: &NormWeights) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        inner.same(at, "rmsnorm: columns", norm.gain.cols, x.cols);
        let activation = inner.numerics.activation;
        let out = inner.transient(&norm.gain.name, activation, x.rows, x.cols);
        let weight = inner.weight(&norm.gain);
        let (rows, width) = (x.rows, x.cols);
        drop(inner);
        self.append(Op::RmsNorm(RmsNorm { x: x.value, weight, out, rows, width, eps: norm.eps }));
        T::new(out, rows, width)
    }

    #[track_caller]
    #[must_use]
    pub fn linear(&mut self, x: &T<'s>, weight: &Weight) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, 1, Epilogue::None, None)
    }

    /// As `linear`, with f32 output.
    #[track_caller]
    #[must_use]
    pub fn linear_f32(&mut self, x: &T<'s>, weight: &Weight) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, 1, Epilogue::None, Some(Dtype::F32))
    }

    /// Block-diagonal: group `g` of the columns meets group `g` of the weight's rows.
    #[track_caller]
    #[must_use]
    pub fn linear_grouped(&mut self, x: &T<'s>, weight: &Weight, groups: usize) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, groups, Epilogue::None, None)
    }

    /// Gate and up projection stacked in one weight, clamped SwiGLU.
    #[track_caller]
    #[must_use]
    pub fn swiglu(&mut self, x: &T<'s>, weight: &Weight, limit: f32) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, 1, Epilogue::SwiGlu { limit }, None)
    }

    fn linear_as(
        &mut self,
        at: &Location<'_>,
        x: &T<'s>,
        weight: &Weight,
        groups: usize,
        epilogue: Epilogue,
        dtype: Option<Dtype>,
    ) -> T<'s> {
        let mut inner = self.inner();
        inner.same(at, &format!("{}: columns in", weight.name), weight.cols * groups, x.cols);
        if !weight.rows.is_multiple_of(groups) {
            inner.fail(at, format!("{}: {} rows do not fall into {groups} groups", weight.name, weight.rows));
        }
        let out = Value { buffer: crate::ops::BufferId(0), dtype: Dtype::U8, len: 0 };
        let mut op = Linear {
            x: x.value,
            weight: inner.weight(weight),
            out,
            rows: x.rows,
            cols_in: x.cols,
            weight_rows: weight.rows,
            groups,
            epilogue,
        };
        let dtype = dtype.unwrap_or(inner.numerics.activation);
        op.out = inner.transient(&weight.name, dtype, x.rows, op.cols_out());
        drop(inner);
        let result = T::new(op.out, op.rows, op.cols_out());
        self.append(Op::Linear(op));
        result
    }

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
        let tokens = inner.tokens(at);
        inner.same(at, "compress: columns of the projection", w.layout.projection(), kvg.cols);
        inner.same(at, "compress: elements of a state", w.layout.len(), state.len);
        let op = Compress {
            tokens,
            kvg: kvg.value,
            ape: inner.weight(&w.ape),
            norm: inner.weight(&w.norm.gain),
            rope: inner.weight(&w.rope),
            state_slot: state_slot.value,
            row_slot: row_slot.value,
            state: state.buffer,
            state_slots: state.slots,
            layout: w.layout,
            pool: tail.paged.pool,
            pages: tail.paged.pages,
            page_rows: tail.paged.page_rows,
            format: inner.numerics.kv,
            trained: inner.numerics.trained,
            max_positions: w.rope.rows,
            eps: w.norm.eps,
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
        let tokens = inner.tokens(at);
        inner.same(at, "index_store: columns of the projection", w.layout.projection(), kvg.cols);
        inner.same(at, "index_store: elements of a state", w.layout.len(), state.len);
        let op = IndexStore {
            tokens,
            kvg: kvg.value,
            ape: inner.weight(&w.ape),
            norm: inner.weight(&w.norm.gain),
            rope: inner.weight(&w.rope),
            state_slot: state_slot.value,
            row_slot: row_slot.value,
            state: state.buffer,
            state_slots: state.slots,
            layout: w.layout,
            pool: tail.paged.pool,
            pages: tail.paged.pages,
            format: inner.numerics.index,
            max_positions: w.rope.rows,
            eps: w.norm.eps,
        };
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

    /// Chooses experts; the ids are an output that later operations read.
    #[track_caller]
    #[must_use]
    pub fn router(
        &mut self,
        logits: &T<'s>,
        by: RouteBy<'_, 's>,
        ids: Output<'s>,
        factor: f32,
    ) -> Routed<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (rows, k, experts) = (tokens.rows(), ids.cols, logits.cols);
        inner.same(at, "router: rows of the ids", rows, ids.rows);
        let weights = inner.transient("router.weights", Dtype::F32, rows, k);
        let routing = match by {
            RouteBy::Score { bias } => {
                inner.same(at, "router: biases", experts, bias.cols);
                Routing::Scored { bias: inner.weight(bias) }
            }
            RouteBy::Hash { table, token } => {
                inner.same(at, "router: columns of the hash table", k, table.cols);
                Routing::Hash { table: inner.weight(table), token: token.value, vocab: table.rows }
            }
        };
        drop(inner);
        let op =
            Router { tokens, logits: logits.value, routing, ids: ids.value, weights, experts, k, factor };
        self.append(Op::Router(op));
        Routed { ids: T::new(ids.value, rows, k), weights: T::new(weights, rows, k), k, experts }
    }

    /// Gate and up of the chosen experts; `weight` stacks `[w1; w3]` of every expert.
    #[track_caller]
    #[must_use]
    pub fn experts_up(&mut self, x: &T<'s>, routed: &Routed<'s>, weight: &Weight, limit: f32) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, &format!("{}: columns", weight.name), x.cols, weight.cols);
        let width = weight.rows / (2 * routed.experts);
        inner.same(at, &format!("{}: rows", weight.name), 2 * width * routed.experts, weight.rows);
        let activation = inner.numerics.activation;
        let h = inner.transient(&weight.name, activation, x.rows, routed.k * width);
        let op = ExpertsUp {
            tokens,
            x: x.value,
            ids: routed.ids.value,
            weights: routed.weights.value,
            weight: inner.weight(weight),
            h,
            experts: routed.experts,
            k: routed.k,
            hidden: x.cols,
            width,
            limit,
        };
        drop(inner);
        self.append(Op::ExpertsUp(op));
        T::new(h, x.rows, routed.k * width)
    }

    /// Down projection of the chosen experts, summed in ascending id, the shared expert last.
    #[track_caller]
    #[must_use]
    pub fn experts_down(&mut self, h: &T<'s>, routed: &Routed<'s>, weight: &Weight, shared: &T<'s>) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (hidden, width) = (shared.cols, weight.cols);
        inner.same(at, &format!("{}: rows", weight.name), routed.experts * hidden, weight.rows);
        inner.same(at, &format!("{}: columns", weight.name), h.cols, routed.k * width);
        let activation = inner.numerics.activation;
        let y = inner.transient(&weight.name, activation, h.rows, hidden);
        let op = ExpertsDown {
            tokens,
            h: h.value,
            ids: routed.ids.value,
            weight: inner.weight(weight),
            shared: shared.value,
            y,
            experts: routed.experts,
            k: routed.k,
            hidden,
            width,
        };
        drop(inner);
        self.append(Op::ExpertsDown(op));
        T::new(y, h.rows, hidden)
    }

    /// f32 logits into an output that later operations read.
    #[track_caller]
    #[must_use]
    pub fn logits(&mut self, x: &T<'s>, weight: &Weight, out: Output<'s>) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        inner.same(at, "logits: columns in", weight.cols, x.cols);
        inner.same(at, "logits: columns out", weight.rows, out.cols);
        inner.same(at, "logits: rows", x.rows, out.rows);
        let op = Linear {
            x: x.value,
            weight: inner.weight(weight),
            out: out.value,
            rows: x.rows,
            cols_in: x.cols,
            weight_rows: weight.rows,
            groups: 1,
            epilogue: Epilogue::None,
        };
        drop(inner);
        self.append(Op::Linear(op));
        T::new(out.value, out.rows, out.cols)
    }

    #[track_caller]
    pub fn sample(&mut self, logits: &T<'s>, p: &SampleParams<'s>, token: Output<'s>, status: Output<'s>) {
        let at = Location::caller();
        let mut inner = self.inner();
        let samples = logits.rows;
        for (what, rows) in
            [("temperature", p.temperature.rows), ("token", token.rows), ("status", status.rows)]
        {
            inner.same(at, &format!("sample: rows of {what}"), samples, rows);
        }
        drop(inner);
        self.append(Op::Sample(Sample {
            logits: logits.value,
            temperature: p.temperature.value,
            top_p: p.top_p.value,
            min_p: p.min_p.value,
            top_k: p.top_k.value,
            seed: p.seed.value,
            position: p.position.value,
            token: token.value,
            status: status.value,
            samples,
            vocab: logits.cols,
        }));
    }
}
