//! A model with three C4 layers, of which the built-in one has two: their indexers take turns in the same memory, and each must
//! select for itself.

use flashlane::checkpoint::{Checkpoint, ModelConfig, synthetic};
use flashlane::cpu::KnockOut;
use flashlane::engine::{Engine, Generate, SamplingParams};
use flashlane::model::{CacheLayout, ModelWeights};
use flashlane::ops::{Op, Value};

use crate::engine::{PROMPTS, SERVED, collect, config, request};

const C4: [usize; 3] = [1, 2, 3];

fn checkpoint() -> Checkpoint {
    let compress_ratios = vec![0, 4, 4, 4];
    let config = ModelConfig { num_hidden_layers: 4, compress_ratios, ..synthetic::tiny_config() };
    synthetic::checkpoint(&config, 11).unwrap()
}

/// Greedy tokens of a prompt of which an index selects 8 rows out of 150.
fn tokens(knocked_out: &[KnockOut]) -> Vec<u32> {
    let engine = Engine::on_cpu_without(&checkpoint(), config(SERVED, 1), knocked_out).unwrap();
    let mut long = request(2, 600, 24);
    long.sampling = SamplingParams::default();
    collect(engine.submit(long).unwrap()).0
}

/// Bytes of the arena that a value of a step has.
fn place(offsets: &[Option<usize>], value: &Value) -> std::ops::Range<usize> {
    let start = offsets[value.buffer.0 as usize].unwrap();
    start..start + value.bytes()
}

#[test]
fn the_scores_of_different_layers_share_memory() {
    let config = config(SERVED, 2);
    let (weights, _) = ModelWeights::new(&checkpoint().config, config.max_positions());
    let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
    for step in config.prepare(&weights, &layout).unwrap() {
        let scores = step.step.graph.nodes.iter().filter_map(|node| match &node.op {
            Op::TopK(op) => Some(place(&step.plan.offsets, &op.logits)),
            _ => None,
        });
        let scores: Vec<_> = scores.collect();
        assert_eq!(scores.len(), C4.len());
        let meet = |a: usize, b: usize| scores[a].start < scores[b].end && scores[b].start < scores[a].end;
        assert!(meet(0, 1) || meet(1, 2) || meet(0, 2), "{scores:?}");
    }
}

#[test]
fn each_layer_selects_for_itself() {
    let whole = tokens(&[]);
    let without: Vec<Vec<u32>> = C4.iter().map(|&layer| tokens(&[KnockOut::of(layer)])).collect();
    for (i, one) in without.iter().enumerate() {
        assert_ne!(*one, whole, "layer {}", C4[i]);
        assert!(without[..i].iter().all(|other| other != one), "layer {}", C4[i]);
    }
    let never = C4.map(|layer| KnockOut { rate: 0.0, ..KnockOut::of(layer) });
    assert_eq!(tokens(&never), whole);
}

#[test]
fn tokens_are_the_same_alone_and_in_company() {
    let all = |rows: usize| -> Vec<Vec<u32>> {
        let engine = Engine::on_cpu(&checkpoint(), config(SERVED, rows)).unwrap();
        let submit = |(seed, prompt): (u64, usize)| engine.submit(request(seed, prompt, 9)).unwrap();
        let handles: Vec<_> = (0u64..).zip(PROMPTS).map(submit).collect();
        handles.into_iter().map(|handle| collect(handle).0).collect()
    };
    assert_eq!(all(12), all(1));
}

#[test]
fn a_layer_without_compressed_rows_has_none_to_lose() {
    let refused = Engine::on_cpu_without(&checkpoint(), config(SERVED, 1), &[KnockOut::of(0)]).unwrap_err();
    let expected = "layer 0 cannot be knocked out: expected a layer with compressed rows ([1, 2, 3])";
    assert_eq!(refused.to_string(), expected);
}
