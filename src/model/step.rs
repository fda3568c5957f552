//! A whole step: embedding, layers, head and sampler, with the places of its inputs and outputs.

use std::fmt;

use super::attention::{Cache, Slots, attention};
use super::layout::CacheLayout;
use super::moe::moe;
use super::weights::ModelWeights;
use crate::ops::{BLOCK_TOKENS, Dtype, PAGE_ROWS, Value};
use crate::step::{BuildError, Carry, Graph, Lane, Numerics, Output, Root, SampleParams, T, build};

/// What a step's shapes depend on: the bucket alone, never a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Requests (rows of the page tables).
    pub requests: usize,
    /// Token rows of each: 1 in decode, 256 in prefill.
    pub per_request: usize,
    /// Rows that get logits and a next token.
    pub samples: usize,
    /// Longest sequence; a multiple of 256.
    pub max_positions: usize,
}

impl StepShape {
    #[must_use]
    pub const fn decode(rows: usize, max_positions: usize) -> Self {
        Self { requests: rows, per_request: 1, samples: rows, max_positions }
    }

    #[must_use]
    pub const fn prefill(max_positions: usize) -> Self {
        Self { requests: 1, per_request: BLOCK_TOKENS, samples: 1, max_positions }
    }

    #[must_use]
    pub const fn rows(&self) -> usize {
        self.requests * self.per_request
    }
}

/// The bucket's name: `decode 32`, `prefill`.
impl fmt::Display for StepShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per_request {
            1 => write!(f, "decode {}", self.requests),
            _ => write!(f, "prefill"),
        }
    }
}

/// Where the host finds the inputs and outputs of a step. Shapes in elements; see `ops` for meanings.
#[derive(Clone, Debug, PartialEq)]
pub struct StepIo {
    /// [`crate::ops::Embed::CARRIED`] for a token that the last step sampled.
    pub token: Value,
    pub position: Value,
    pub window_slot: Value,
    pub c4_slot: Value,
    pub c128_slot: Value,
    pub state_slot: Value,
    pub window_table: Value,
    pub window_width: usize,
    pub block_table: Value,
    pub block_width: usize,
    pub sample_rows: Value,
    pub temperature: Value,
    pub top_p: Value,
    pub min_p: Value,
    pub top_k: Value,
    pub seed: Value,
    pub sample_position: Value,
    pub logits: Value,
    pub next: Value,
    pub status: Value,
    /// Chosen experts i32 `[T, k]`, by layer.
    pub experts: Vec<Value>,
    /// Selected rows i32 `[T, k]`, by layer; `None` where the layer selects nothing.
    pub selected: Vec<Option<Value>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelStep {
    pub shape: StepShape,
    pub graph: Graph,
    pub io: StepIo,
}

/// What the nodes of a layer have for a scope.
#[must_use]
pub fn layer_scope(layer: usize) -> String {
    format!("layer {layer}")
}

/// Builds the step of one bucket.
///
/// # Errors
/// [`BuildError`] if shapes do not fit; it names the line of the model.
pub fn build_step(
    weights: &ModelWeights,
    layout: &CacheLayout,
    numerics: Numerics,
    shape: StepShape,
) -> Result<ModelStep, BuildError> {
    let (graph, io) = build(numerics, |lane, root| model(lane, root, weights, layout, shape))?;
    Ok(ModelStep { shape, graph, io })
}

struct Opened<'s> {
    token: T<'s>,
    slots: Slots<'s>,
    sample_rows: T<'s>,
    params: SampleParams<'s>,
    caches: Vec<Cache<'s>>,
    carry: Carry<'s>,
    experts: Vec<Output<'s>>,
    logits: Output<'s>,
    next: Output<'s>,
    status: Output<'s>,
}

fn model<'s>(
    lane: &mut Lane<'s>,
    root: Root<'s>,
    weights: &ModelWeights,
    layout: &CacheLayout,
    shape: StepShape,
) -> StepIo {
    let (opened, io) = open(root, weights, layout, shape);
    let Opened { token, slots, sample_rows, params, caches, carry, experts, logits, next, status } = opened;
    let (mut streams, token) = lane.embed(&token, &carry.settled, &weights.embed, weights.hyper_head.streams);
    for (l, ((w, cache), ids)) in weights.layers.iter().zip(caches).zip(experts).enumerate() {
        lane.scope(&layer_scope(l));
        let mixed = lane.hyper_pre(&streams, &w.hyper_attention, &w.attention_norm);
        let y = attention(lane, &mixed.x, &w.attention, &slots, cache);
        streams = lane.hyper_post(&streams, &y, &mixed);
        let mixed = lane.hyper_pre(&streams, &w.hyper_moe, &w.moe_norm);
        let y = moe(lane, &mixed.x, &token, &w.moe, ids);
        streams = lane.hyper_post(&streams, &y, &mixed);
    }
    lane.scope("head");
    let x = lane.hyper_head(&streams, &sample_rows, &weights.hyper_head, &weights.norm);
    let logits = lane.logits(&x, &weights.head, logits);
    lane.sample(&logits, &params, carry.tail, next, status);
    io
}

fn open<'s>(
    root: Root<'s>,
    weights: &ModelWeights,
    layout: &CacheLayout,
    shape: StepShape,
) -> (Opened<'s>, StepIo) {
    let (rows, requests, samples) = (shape.rows(), shape.requests, shape.samples);
    let column = |name: &str, dtype: Dtype, rows: usize| root.input(name, dtype, rows, 1);
    let position = column("position", Dtype::I32, rows);
    root.tokens(requests, shape.per_request, &position);
    let token = column("token", Dtype::I32, rows);
    let slots = Slots {
        window: column("window_slot", Dtype::I64, rows),
        c4: column("c4_slot", Dtype::I64, rows),
        c128: column("c128_slot", Dtype::I64, rows),
        state: column("state_slot", Dtype::I32, requests),
    };
    let window_width = shape.max_positions.div_ceil(PAGE_ROWS);
    let block_width = shape.max_positions.div_ceil(BLOCK_TOKENS);
    let window_table = root.input("window_table", Dtype::I32, requests, window_width);
    let block_table = root.input("block_table", Dtype::I32, requests, block_width);
    let sample_rows = column("sample_rows", Dtype::I32, samples);
    let params = SampleParams {
        temperature: column("temperature", Dtype::F32, samples),
        top_p: column("top_p", Dtype::F32, samples),
        min_p: column("min_p", Dtype::F32, samples),
        top_k: column("top_k", Dtype::I32, samples),
        seed: column("seed", Dtype::U64, samples),
        position: column("sample_position", Dtype::I32, samples),
    };
    let carry = root.carry(&layout.carry, &slots.state);
    let next = root.output("next", Dtype::I32, samples, 1);
    let status = root.output("status", Dtype::I32, samples, 1);
    let logits = root.output("logits", Dtype::F32, samples, weights.head.rows);

    let (mut caches, mut experts) = (Vec::new(), Vec::new());
    let (mut expert_values, mut selected_values) = (Vec::new(), Vec::new());
    for (l, (cache, w)) in layout.layers.iter().zip(&weights.layers).enumerate() {
        let ids = root.output(&format!("layers.{l}.experts"), Dtype::I32, rows, w.moe.chosen);
        expert_values.push(ids.value());
        experts.push(ids);
        let index = cache.index.as_ref().zip(w.attention.indexer.as_ref()).map(|((pool, state), indexer)| {
            let selected = root.output(&format!("layers.{l}.selected"), Dtype::I32, rows, indexer.topk);
            (root.pool(pool, &block_table), root.state(state), selected)
        });
        selected_values.push(index.as_ref().map(|(.., selected)| selected.value()));
        caches.push(Cache {
            window: root.pool(&cache.window, &window_table),
            rows: cache.rows.as_ref().map(|(pool, state)| (root.pool(pool, &block_table), root.state(state))),
            index,
        });
    }
    let io = StepIo {
        token: token.value(),
        position: position.value(),
        window_slot: slots.window.value(),
        c4_slot: slots.c4.value(),
        c128_slot: slots.c128.value(),
        state_slot: slots.state.value(),
        window_table: window_table.value(),
        window_width,
        block_table: block_table.value(),
        block_width,
        sample_rows: sample_rows.value(),
        temperature: params.temperature.value(),
        top_p: params.top_p.value(),
        min_p: params.min_p.value(),
        top_k: params.top_k.value(),
        seed: params.seed.value(),
        sample_position: params.position.value(),
        logits: logits.value(),
        next: next.value(),
        status: status.value(),
        experts: expert_values,
        selected: selected_values,
    };
    (Opened { token, slots, sample_rows, params, caches, carry, experts, logits, next, status }, io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{ModelConfig, synthetic};
    use crate::format::index_row::IndexFormat;
    use crate::format::kv_row::KvFormat;
    use crate::model::CacheSize;

    #[test]
    fn a_step_builds_forked_and_connected() {
        let compress_ratios = vec![0, 4, 128, 4, 0];
        let config = ModelConfig { num_hidden_layers: 5, compress_ratios, ..synthetic::tiny_config() };
        let (weights, _) = ModelWeights::new(&config, 4096);
        let numerics =
            Numerics { activation: Dtype::F32, trained: false, kv: KvFormat::F32, index: IndexFormat::F32 };
        let layout = CacheLayout::new(&weights, numerics, CacheSize { window_pages: 9, blocks: 9, slots: 4 });
        for shape in [StepShape::decode(4, 4096), StepShape::prefill(4096)] {
            let step = build_step(&weights, &layout, numerics, shape).unwrap();
            // Window and query everywhere; compress beside them; index with its two branches; shared and routed experts.
            assert_eq!(step.graph.lanes.len(), 1 + 5 * 2 + 1 + 2 * 4 + 5 * 2);
        }
    }
}
