//! The steps of the model itself, at full size and tiny: planned, proved, and every mutant found.

use std::time::Instant;

use flashlane::checkpoint::ModelConfig;
use flashlane::checkpoint::synthetic::tiny_config;
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{CacheLayout, CacheSize, ModelStep, ModelWeights, StepShape, build_step};
use flashlane::ops::Dtype;
use flashlane::step::{Numerics, Plan, Program, critical_path, largest_clique, largest_peak, prove, width};

use crate::random_graph::serial;

pub(crate) fn numerics(index: IndexFormat) -> Numerics {
    Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index }
}

pub(crate) const SIZE: CacheSize = CacheSize { window_pages: 64, blocks: 64, slots: 33 };

pub(crate) fn step(config: &ModelConfig, index: IndexFormat, shape: StepShape) -> ModelStep {
    let (weights, _) = ModelWeights::new(config, shape.max_positions);
    let numerics = numerics(index);
    let layout = CacheLayout::new(&weights, numerics, SIZE);
    build_step(&weights, &layout, numerics, shape).unwrap()
}

/// The published shape of DeepSeek-V4-Flash.
fn flash() -> ModelConfig {
    let ratios = [vec![0, 0], [4, 128].repeat(20), vec![4]].concat();
    ModelConfig {
        hidden_size: 4096,
        num_hidden_layers: 43,
        num_attention_heads: 64,
        q_lora_rank: 1024,
        o_lora_rank: 1024,
        o_groups: 8,
        compress_ratios: ratios,
        max_position_embeddings: 131_072,
        index_n_heads: 64,
        index_topk: 512,
        n_routed_experts: 256,
        num_experts_per_tok: 6,
        moe_intermediate_size: 2048,
        num_hash_layers: 3,
        vocab_size: 129_280,
        ..tiny_config()
    }
}

#[test]
fn the_full_size_decode_step_is_proved_forked_and_serial() {
    let start = Instant::now();
    let step = step(&flash(), IndexFormat::Bf16, StepShape::decode(32, 131_072));
    let (graph, built) = (&step.graph, start.elapsed());
    let plan = Plan::shared(graph);
    let planned = start.elapsed();
    let proved = prove(&Program::of(graph, &plan)).unwrap();
    println!("build {built:?}, plan {:?}, proof {:?}", planned - built, start.elapsed() - planned);
    let serial = serial(graph);
    assert!(prove(&Program::of(&serial, &plan)).is_ok());
    let (alone, apart) = (Plan::shared(&serial).arena_bytes, Plan::unshared(graph).arena_bytes);
    let bound = largest_peak(graph, 1000, 1).max(largest_peak(&serial, 1, 1));
    println!("{proved:?}, path {}, width {}", critical_path(graph), width(graph));
    println!(
        "arena {} (serial {alone}, unshared {apart}), bound {bound}, clique {}",
        plan.arena_bytes,
        largest_clique(graph)
    );
    assert!(plan.arena_bytes as f64 <= 1.3 * bound as f64);
}
