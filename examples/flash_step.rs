//! The decode step of DeepSeek-V4-Flash on a GPU, at the real sizes, with random weights that no file holds: every way to run
//! it gives the same bytes, and each is timed. As many layers as memory has room for.
//!
//! `cargo run --release -p flashlane --features cuda --example flash_step -- --layers 34 1x8192 8x8192 64x8192 1x131072 prefill:8192`
//! prints JSON: for each batch x context, and each block of 256 prompt tokens that ends at a context, in each way to run,
//! microseconds of a step and, of decode, the bytes that it cannot avoid; and where the time goes, by operation.
//! `--config models/tiny/config.json` takes the sizes of another model.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use flashlane::checkpoint::{ModelConfig, presets};
use flashlane::cuda::{Backend, DeviceResident, DeviceStep, DeviceWeights, Executor, Gpu, Options, RunMode};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{
    CacheLayout, CacheSize, ModelStep, ModelWeights, Registry, Source, StepShape, build_step,
};
use flashlane::ops::{BLOCK_TOKENS, Dtype, Op, PAGE_ROWS, WINDOW};
use flashlane::step::{Memory, Numerics, Plan, PoolSpec, Random};
use serde_json::{Value as Json, json};

/// Different pages that a pool is tiled with.
const PATTERN: usize = 16;
const REPEATS: usize = 30;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Model {
    weights: ModelWeights,
    registry: Registry,
    numerics: Numerics,
    executor: Executor,
    vocab: usize,
}

fn main() -> Result<()> {
    let mut config = presets::flash();
    let mut layers = None;
    let mut cases = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--layers" => layers = Some(args.next().ok_or("--layers needs a number")?.parse()?),
            "--config" => {
                let path = args.next().ok_or("--config needs a file")?;
                config = ModelConfig::from_json(&std::fs::read(path)?)?.0;
            }
            case => cases.push(Case::parse(case)?),
        }
    }
    let longest = cases.iter().map(|c| c.context).max().ok_or("give at least one BATCHxCONTEXT")?;
    if let Some(layers) = layers {
        config.num_hidden_layers = layers;
        config.compress_ratios.truncate(layers);
    }
    let gpu = Gpu::open(0)?;
    let name = gpu.device_name()?;
    let layers = config.num_hidden_layers;
    let model = Model::new(Arc::new(gpu), &config, longest)?;
    let (mut steps, mut ops) = (Vec::new(), Vec::new());
    for case in cases {
        let (found, profile) = model.case(case)?;
        steps.extend(found);
        ops.push(profile);
    }
    let index_k = format!("{:?}", model.numerics.index).to_lowercase();
    println!(
        "{:#}",
        json!({ "device": name, "layers": layers, "index_k": index_k, "steps": steps, "ops": ops })
    );
    Ok(())
}

/// What a step is for.
#[derive(Clone, Copy)]
struct Case {
    requests: usize,
    per_request: usize,
    context: usize,
}

impl Case {
    fn parse(text: &str) -> Result<Self> {
        if let Some(context) = text.strip_prefix("prefill:") {
            let context: usize = context.parse()?;
            return Ok(Self {
                requests: 1,
                per_request: BLOCK_TOKENS,
                context: context.next_multiple_of(BLOCK_TOKENS),
            });
        }
        let (batch, context) = text
            .split_once('x')
            .ok_or_else(|| format!("expected BATCHxCONTEXT or prefill:CONTEXT, found {text:?}"))?;
        Ok(Self { requests: batch.parse()?, per_request: 1, context: context.parse()? })
    }

    /// Pages of the sliding window that a request reads and writes.
    fn window_pages(self) -> usize {
        (WINDOW + self.per_request).div_ceil(PAGE_ROWS) + 1
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per_request {
            1 => write!(f, "{} x {}", self.requests, self.context),
            _ => write!(f, "prefill {}", self.context),
        }
    }
}

impl Model {
    fn new(backend: Arc<dyn Backend>, config: &ModelConfig, positions: usize) -> Result<Self> {
        let (weights, registry) = ModelWeights::new(config, positions.next_multiple_of(BLOCK_TOKENS));
        let started = Instant::now();
        let made = DeviceWeights::random(&backend, &registry, &weights.stacks(), 1)?;
        let bytes: usize = registry.entries.iter().map(|e| e.weight.bytes).sum();
        eprintln!(
            "{} layers, {:.1} GB of weights in {:.1} s",
            config.num_hidden_layers,
            bytes as f64 / 1e9,
            started.elapsed().as_secs_f32()
        );
        let (kv, index) = (KvFormat::Fp8, IndexFormat::Bf16);
        let numerics = Numerics { activation: Dtype::Bf16, trained: true, kv, index };
        Ok(Self {
            weights,
            registry,
            numerics,
            vocab: config.vocab_size,
            executor: Executor { backend, weights: made, options: Options::default() },
        })
    }

    fn case(&self, case: Case) -> Result<(Vec<Json>, Json)> {
        let Case { requests: batch, per_request, context } = case;
        let blocks = context.div_ceil(BLOCK_TOKENS);
        let window_pages = batch * case.window_pages() + 1;
        let size = CacheSize { window_pages, blocks: batch * blocks + 1, slots: batch };
        let layout = CacheLayout::new(&self.weights, self.numerics, size);
        let shape =
            StepShape { requests: batch, per_request, samples: batch, max_positions: blocks * BLOCK_TOKENS };
        let step = build_step(&self.weights, &layout, self.numerics, shape)?;
        let plan = Plan::shared(&step.graph);
        let mut memory = Memory::new(&step.graph, &plan);
        fill(&step, &mut memory, case, self.vocab);
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
            let bytes = (per_request == 1).then(|| self.bytes(&step, &memory, batch, context));
            let rate = bytes.map_or_else(String::new, |b| format!(", {:.2} TB/s", b as f64 / us / 1e6));
            eprintln!(
                "{case}: captured {captured} forked {forked} pdl {programmatic}: {us:.0} us{rate}, same bytes: {same}"
            );
            rows.push(json!({
                "batch": batch, "per_request": per_request, "context": context, "captured": captured, "forked": forked, "pdl": programmatic,
                "us": (us * 10.0).round() / 10.0, "bytes": bytes, "same_outputs": same,
                "nodes": step.graph.nodes.len(), "arena_bytes": plan.arena_bytes,
                "fingerprint": ready.certificate.map(|c| format!("{:016x}", c.fingerprint)),
            }));
            if !same {
                return Err(format!("{case}: {mode:?} gives other outputs").into());
            }
        }
        let times = self.executor.profile(&step.graph, &plan, (&device, &resident))?;
        let mut ops = BTreeMap::<String, (usize, f32)>::new();
        for (node, us) in step.graph.nodes.iter().zip(times) {
            let op = ops.entry(label(&node.op)).or_default();
            *op = (op.0 + 1, op.1 + us);
        }
        let mut profile: Vec<_> = ops.into_iter().collect();
        profile.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        for (op, (nodes, us)) in &profile {
            eprintln!("  {op:<34} {nodes:>4} nodes {us:>9.1} us");
        }
        let row = |(op, (nodes, us)): (String, (usize, f32))| json!({ "op": op, "nodes": nodes, "us": us });
        let profile: Vec<Json> = profile.into_iter().map(row).collect();
        Ok((rows, json!({ "batch": batch, "per_request": per_request, "context": context, "ops": profile })))
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

/// An operation's name, and of a linear what it multiplies.
fn label(op: &Op) -> String {
    let Op::Linear(linear) = op else { return op.name().to_owned() };
    let groups = if linear.groups > 1 { format!("{} x ", linear.groups) } else { String::new() };
    let [into, from] = [linear.weight_rows, linear.cols_in].map(|n| n / linear.groups);
    format!("linear {groups}{from} -> {into}")
}

/// Every request's last tokens up to its context, on pages of its own in a shuffled order.
fn fill(step: &ModelStep, memory: &mut Memory, case: Case, vocab: usize) {
    let (io, Case { requests, per_request, context }) = (&step.io, case);
    let mut random = Random::new(7);
    let int = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let mut blocks: Vec<i32> = (1..=int(requests * io.block_width)).collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, random.below(i + 1));
    }
    for r in 0..requests {
        let pages = &blocks[r * io.block_width..][..io.block_width];
        memory.host_mut::<i32>(&io.block_table)[r * io.block_width..][..io.block_width]
            .copy_from_slice(pages);
        let table = &mut memory.host_mut::<i32>(&io.window_table)[r * io.window_width..][..io.window_width];
        let last = (context - 1) / PAGE_ROWS;
        for back in 0..case.window_pages().min(last + 1) {
            table[last - back] = int(1 + r * case.window_pages() + back);
        }
        let table = table.to_vec();
        for t in 0..per_request {
            let (row, position) = (r * per_request + t, context - per_request + t);
            let page = i64::from(table[position / PAGE_ROWS]);
            memory.host_mut::<i64>(&io.window_slot)[row] =
                page * PAGE_ROWS as i64 + (position % PAGE_ROWS) as i64;
            for (value, ratio) in [(&io.c4_slot, 4), (&io.c128_slot, 128)] {
                let ends = (position + 1).is_multiple_of(ratio);
                let page = i64::from(pages[position / BLOCK_TOKENS]) * (BLOCK_TOKENS / ratio) as i64;
                let slot = page + (position % BLOCK_TOKENS / ratio) as i64;
                memory.host_mut::<i64>(value)[row] = if ends { slot } else { -1 };
            }
            memory.host_mut::<i32>(&io.token)[row] = int(random.below(vocab));
            memory.host_mut::<i32>(&io.position)[row] = int(position);
        }
        memory.host_mut::<i32>(&io.state_slot)[r] = int(r);
        memory.host_mut::<i32>(&io.sample_rows)[r] = int((r + 1) * per_request - 1);
        memory.host_mut::<i32>(&io.sample_position)[r] = int(context);
        memory.host_mut::<f32>(&io.top_p)[r] = 1.0;
    }
}
