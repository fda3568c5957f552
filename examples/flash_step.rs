//! The decode step of DeepSeek-V4-Flash on a GPU, at the real sizes, with random weights that no file holds: every way to run
//! it gives the same bytes, and each is timed. As many layers as memory has room for.
//!
//! `cargo run --release -p flashlane --features cuda --example flash_step -- --layers 34 1x8192 8x8192 64x8192 1x131072`
//! prints JSON: for each batch x context and each way to run, microseconds of a step and the bytes that it cannot avoid.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use flashlane::checkpoint::presets;
use flashlane::cuda::{Backend, DeviceResident, DeviceStep, DeviceWeights, Executor, Gpu, Options, RunMode};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{
    CacheLayout, CacheSize, ModelStep, ModelWeights, Registry, Source, StepShape, build_step,
};
use flashlane::ops::{BLOCK_TOKENS, Dtype, PAGE_ROWS};
use flashlane::step::{Memory, Numerics, Plan, PoolSpec, Random};
use serde_json::{Value as Json, json};

const WINDOW_PAGES: usize = 3;
/// Different pages that a pool is tiled with.
const PATTERN: usize = 16;
const REPEATS: usize = 30;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Model {
    weights: ModelWeights,
    registry: Registry,
    numerics: Numerics,
    executor: Executor,
}

fn main() -> Result<()> {
    let mut layers = 34;
    let mut cases = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--layers" {
            layers = args.next().ok_or("--layers needs a number")?.parse()?;
        } else {
            let (batch, context) =
                arg.split_once('x').ok_or_else(|| format!("expected BATCHxCONTEXT, found {arg:?}"))?;
            cases.push((batch.parse::<usize>()?, context.parse::<usize>()?));
        }
    }
    let longest = cases.iter().map(|c| c.1).max().ok_or("give at least one BATCHxCONTEXT")?;
    let gpu = Gpu::open(0)?;
    let name = gpu.device_name()?;
    let model = Model::new(Arc::new(gpu), layers, longest)?;
    let mut found = Vec::new();
    for (batch, context) in cases {
        found.extend(model.case(batch, context)?);
    }
    let index_k = format!("{:?}", model.numerics.index).to_lowercase();
    println!("{:#}", json!({ "device": name, "layers": layers, "index_k": index_k, "steps": found }));
    Ok(())
}

impl Model {
    fn new(backend: Arc<dyn Backend>, layers: usize, positions: usize) -> Result<Self> {
        let mut config = presets::flash();
        config.num_hidden_layers = layers;
        config.compress_ratios.truncate(layers);
        let (weights, registry) = ModelWeights::new(&config, positions.next_multiple_of(BLOCK_TOKENS));
        let started = Instant::now();
        let made = DeviceWeights::random(&backend, &registry, &weights.stacks(), 1)?;
        let bytes: usize = registry.entries.iter().map(|e| e.weight.bytes).sum();
        eprintln!(
            "{layers} layers, {:.1} GB of weights in {:.1} s",
            bytes as f64 / 1e9,
            started.elapsed().as_secs_f32()
        );
        let (kv, index) = (KvFormat::Fp8, IndexFormat::Bf16);
        let numerics = Numerics { activation: Dtype::Bf16, trained: true, kv, index };
        Ok(Self {
            weights,
            registry,
            numerics,
            executor: Executor { backend, weights: made, options: Options::default() },
        })
    }

    fn case(&self, batch: usize, context: usize) -> Result<Vec<Json>> {
        let blocks = context.div_ceil(BLOCK_TOKENS);
        let size =
            CacheSize { window_pages: batch * WINDOW_PAGES + 1, blocks: batch * blocks + 1, slots: batch };
        let layout = CacheLayout::new(&self.weights, self.numerics, size);
        let shape = StepShape::decode(batch, blocks * BLOCK_TOKENS);
        let step = build_step(&self.weights, &layout, self.numerics, shape)?;
        let plan = Plan::shared(&step.graph);
        let mut memory = Memory::new(&step.graph, &plan);
        fill(&step, &mut memory, batch, context);
        let backend = &self.executor.backend;
        let resident = DeviceResident::zeroed(backend, &layout)?;
        for pool in layout.pools() {
            self.noise(&resident, pool)?;
        }
        let device = DeviceStep::upload(backend, &step.graph, &memory)?;
        let mut expected: Option<Vec<u8>> = None;
        let mut rows = Vec::new();
        for (captured, forked, programmatic) in MODES {
            let mode = RunMode { captured, forked, programmatic };
            let ready = self.executor.ready(&step.graph, &plan, (&device, &resident), mode)?;
            self.executor.start(&ready)?;
            device.read_outputs(&mut memory)?;
            let same = expected.get_or_insert_with(|| memory.outputs().to_vec()) == memory.outputs();
            let begun = Instant::now();
            for _ in 0..REPEATS {
                self.executor.start(&ready)?;
            }
            backend.synchronize()?;
            let us = begun.elapsed().as_secs_f64() * 1e6 / REPEATS as f64;
            let bytes = self.bytes(&step, &memory, batch, context);
            eprintln!(
                "{batch} x {context} captured {captured} forked {forked} pdl {programmatic}: {us:.0} us, {:.2} TB/s, same bytes: {same}",
                bytes as f64 / us / 1e6
            );
            rows.push(json!({
                "batch": batch, "context": context, "captured": captured, "forked": forked, "pdl": programmatic,
                "us": (us * 10.0).round() / 10.0, "bytes": bytes, "same_outputs": same,
                "nodes": step.graph.nodes.len(), "arena_bytes": plan.arena_bytes,
                "fingerprint": ready.certificate.map(|c| format!("{:016x}", c.fingerprint)),
            }));
            if !same {
                return Err(format!("{batch} x {context}: {mode:?} gives other outputs").into());
            }
        }
        Ok(rows)
    }

    /// Rows that mean nothing, in a valid encoding.
    fn noise(&self, resident: &DeviceResident, pool: &PoolSpec) -> Result<()> {
        let mut random = Random::new(u64::from(pool.id.0));
        let mut pattern = vec![0u8; PATTERN * pool.page_bytes];
        let index = pool.name.ends_with(".index");
        for page in pattern.chunks_exact_mut(pool.page_bytes) {
            for row in 0..pool.page_rows {
                let mut uniform = || (random.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0;
                if index {
                    self.numerics.index.encode_row(
                        &std::array::from_fn(|_| uniform()),
                        page,
                        row,
                        pool.page_rows,
                    );
                } else {
                    self.numerics.kv.encode_row(
                        &std::array::from_fn(|_| uniform()),
                        page,
                        row,
                        pool.page_rows,
                    );
                }
            }
        }
        let buffer = resident.pool(pool.id).ok_or("a pool without memory")?;
        for start in (0..buffer.len()).step_by(pattern.len()) {
            buffer.upload(start, &pattern[..pattern.len().min(buffer.len() - start)])?;
        }
        Ok(())
    }

    /// Bytes that the step must read: dense weights once, experts that were chosen, rows that are scored or attended to.
    fn bytes(&self, step: &ModelStep, memory: &Memory, batch: usize, context: usize) -> usize {
        let stacks = self.weights.stacks();
        let dense = |e: &&flashlane::model::Entry| {
            !stacks.contains_key(&e.weight.id)
                && matches!(e.source, Source::Stack(_))
                && e.weight.name != "embed.weight"
        };
        let mut bytes: usize = self.registry.entries.iter().filter(dense).map(|e| e.weight.bytes).sum();
        for (layer, chosen) in self.weights.layers.iter().zip(&step.io.experts) {
            let mut ids: Vec<i32> = memory.host::<i32>(chosen).to_vec();
            ids.sort_unstable();
            ids.dedup();
            let stack = layer.moe.up.bytes + layer.moe.down.bytes;
            bytes += stack / layer.moe.gate.rows * ids.len();
            let row = self.numerics.kv.row_bytes();
            bytes += batch * row * context.min(128);
            let ratio = layer.attention.compressor.as_ref().map(|(_, c)| c.layout.ratio);
            let compressed = ratio.map_or(0, |ratio| context / ratio);
            bytes += batch
                * match &layer.attention.indexer {
                    Some(indexer) => {
                        row * compressed.min(indexer.topk) + self.numerics.index.row_bytes() * compressed
                    }
                    None => row * compressed,
                };
        }
        bytes
    }
}

/// Captured, forked, programmatic. The first is the reference for the bytes of the others.
const MODES: [(bool, bool, bool); 6] = [
    (false, false, false),
    (false, true, false),
    (true, false, false),
    (true, true, false),
    (true, false, true),
    (true, true, true),
];

/// Every request decodes the last token of its context, on pages of its own in a shuffled order.
fn fill(step: &ModelStep, memory: &mut Memory, batch: usize, context: usize) {
    let (io, position) = (&step.io, context - 1);
    let mut random = Random::new(7);
    let mut blocks: Vec<i32> = (1..=i32::try_from(batch * io.block_width).unwrap_or(i32::MAX)).collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, random.below(i + 1));
    }
    let int = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    for r in 0..batch {
        let pages = &blocks[r * io.block_width..][..io.block_width];
        memory.host_mut::<i32>(&io.block_table)[r * io.block_width..][..io.block_width]
            .copy_from_slice(pages);
        let table = &mut memory.host_mut::<i32>(&io.window_table)[r * io.window_width..][..io.window_width];
        let last = position / PAGE_ROWS;
        for back in 0..WINDOW_PAGES.min(last + 1) {
            table[last - back] = int(1 + r * WINDOW_PAGES + back);
        }
        let window = i64::from(table[last]) * PAGE_ROWS as i64 + (position % PAGE_ROWS) as i64;
        memory.host_mut::<i64>(&io.window_slot)[r] = window;
        for (value, ratio) in [(&io.c4_slot, 4), (&io.c128_slot, 128)] {
            let ends = (position + 1).is_multiple_of(ratio);
            let page = i64::from(pages[position / BLOCK_TOKENS]) * (BLOCK_TOKENS / ratio) as i64;
            let slot = page + (position % BLOCK_TOKENS / ratio) as i64;
            memory.host_mut::<i64>(value)[r] = if ends { slot } else { -1 };
        }
        memory.host_mut::<i32>(&io.token)[r] = int(random.below(100_000));
        memory.host_mut::<i32>(&io.position)[r] = int(position);
        memory.host_mut::<i32>(&io.state_slot)[r] = int(r);
        memory.host_mut::<i32>(&io.sample_rows)[r] = int(r);
        memory.host_mut::<i32>(&io.sample_position)[r] = int(position + 1);
        memory.host_mut::<f32>(&io.top_p)[r] = 1.0;
    }
}
