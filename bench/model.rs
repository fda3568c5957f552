//! Whole requests through the engine: tokens per second of one stream, of eight, and of prefill.

use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use flashlane::checkpoint::{
    Checkpoint, DenseFormat, ExpertFormat, ModelConfig, QuantizeOptions, quantize, synthetic,
};
use flashlane::cpu::{Weights, serial};
use flashlane::engine::{
    Engine, EngineConfig, Event, Generate, GenerateRequest, HostDevice, RequestHandle, SamplingParams,
};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::instrument::Instruments;
use flashlane::model::{CacheLayout, ModelWeights, load};
use flashlane::ops::Dtype;
use flashlane::step::Numerics;

/// The shape of the built-in model.
fn config() -> ModelConfig {
    ModelConfig {
        hidden_size: 256,
        num_hidden_layers: 6,
        num_attention_heads: 8,
        o_groups: 2,
        compress_ratios: vec![0, 0, 4, 128, 4, 0],
        num_draft_layers: 0,
        index_n_heads: 8,
        index_topk: 16,
        n_routed_experts: 8,
        vocab_size: 768,
        swiglu_limit: 10.0,
        ..synthetic::tiny_config()
    }
}

/// The model of the environment, or random weights in the formats that a quantised checkpoint has.
fn checkpoint() -> Checkpoint {
    if let Ok(dir) = std::env::var("FLASHLANE_BENCH_MODEL") {
        return Checkpoint::open(Path::new(&dir)).expect("a checkpoint");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    synthetic::write(dir.path(), &config(), 7).expect("random weights");
    let out = dir.path().join("quantised");
    let options = QuantizeOptions::new(ExpertFormat::Nvfp4, DenseFormat::Fp8);
    quantize(dir.path(), &out, &options, |_| std::ops::ControlFlow::Continue(())).expect("quantised weights");
    Checkpoint::open(&out).expect("the quantised checkpoint")
}

fn start(checkpoint: &Checkpoint) -> Engine {
    let config = EngineConfig {
        max_model_len: 2048,
        max_num_seqs: 8,
        decode_buckets: flashlane::engine::DecodeBuckets::default(),
        max_num_queued: 64,
        num_blocks: None,
        numerics: Numerics {
            activation: Dtype::Bf16,
            trained: true,
            kv: KvFormat::Fp8,
            index: IndexFormat::Bf16,
        },
        vocab: checkpoint.config.vocab_size,
        threads: None,
        instruments: Instruments::default(),
    };
    let (tree, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
    let layout = CacheLayout::new(&tree, config.numerics, config.cache_size());
    let weights: Weights = load(&registry, checkpoint).expect("weights").into_iter().collect();
    let steps = config.prepare(&tree, &layout).expect("proved steps");
    let device = HostDevice::new(&layout, steps, weights, serial::run_step);
    Engine::start(config, layout, Box::new(device)).expect("an engine")
}

fn submit(engine: &Engine, stream: usize, prompt: usize, max_tokens: usize) -> RequestHandle {
    let prompt = (0..prompt).map(|i| ((i * 7919 + stream * 104_729) % 700) as u32).collect();
    let sampling = SamplingParams { temperature: 1.0, seed: stream as u64, ..SamplingParams::default() };
    engine
        .submit(GenerateRequest { prompt, max_tokens, stop_token_ids: Vec::new(), sampling })
        .expect("accepted")
}

/// Time from the first token to the end, of streams that all have their first token; or to the first token of one.
fn wait(mut handles: Vec<RequestHandle>) -> Duration {
    for handle in &mut handles {
        next_token(handle);
    }
    let start = Instant::now();
    for handle in &mut handles {
        while next_token(handle) {}
    }
    start.elapsed()
}

fn next_token(handle: &mut RequestHandle) -> bool {
    match handle.events.blocking_recv() {
        Some(Event::Token(_)) => true,
        Some(Event::Finished { .. }) => false,
        other => panic!("the request ended with {other:?}"),
    }
}

pub(crate) fn all(c: &mut Criterion) {
    const CONTEXT: usize = 600;
    const TOKENS: usize = 129;
    let engine = start(&checkpoint());
    let mut group = c.benchmark_group("model");
    group.sample_size(10);
    for streams in [1, 8] {
        group.throughput(Throughput::Elements((streams * (TOKENS - 1)) as u64));
        group.bench_function(BenchmarkId::new("decode", streams), |b| {
            b.iter_custom(|n| {
                let once = || wait((0..streams).map(|s| submit(&engine, s, CONTEXT, TOKENS)).collect());
                (0..n).map(|_| once()).sum()
            });
        });
    }
    group.throughput(Throughput::Elements(1024));
    group.bench_function(BenchmarkId::new("prefill", 1024), |b| {
        b.iter(|| wait(vec![submit(&engine, 0, 1024, 1)]));
    });
    group.finish();
}
