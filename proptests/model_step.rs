//! The steps of the model itself, at full size and tiny: planned, proved, and every mutant found.

use std::time::Instant;

use flashlane::checkpoint::ModelConfig;
use flashlane::checkpoint::presets::flash;
use flashlane::checkpoint::synthetic::tiny_config;
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{CacheLayout, CacheSize, ModelStep, ModelWeights, StepShape, build_step};
use flashlane::ops::Dtype;
use flashlane::step::{
    Check, Drive, Layout, Mutant, Numerics, Plan, Program, Replay, Rule, critical_path, fingerprint,
    largest_clique, largest_peak, prove, prove_loop, purity, serial, width,
};

pub(crate) fn numerics(index: IndexFormat) -> Numerics {
    Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index }
}

pub(crate) const SIZE: CacheSize = CacheSize { window_pages: 40, blocks: 40, slots: 9 };

pub(crate) fn step(config: &ModelConfig, index: IndexFormat, shape: StepShape) -> ModelStep {
    let (weights, _) = ModelWeights::new(config, shape.max_positions);
    let numerics = numerics(index);
    let layout = CacheLayout::new(&weights, numerics, SIZE);
    build_step(&weights, &layout, numerics, shape).unwrap()
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

#[test]
fn the_full_size_prefill_step_is_proved_in_every_index_format() {
    for index in [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4] {
        let step = step(&flash(), index, StepShape::prefill(131_072));
        let plan = Plan::shared(&step.graph);
        let verdict = prove(&Program::of(&step.graph, &plan));
        assert!(verdict.is_ok(), "{}", verdict.unwrap_err()[0]);
        assert!(plan.arena_bytes as f64 <= 1.3 * largest_peak(&step.graph, 1000, 2) as f64);
    }
}

fn tiny(shape: StepShape) -> ModelStep {
    step(&tiny_config(), IndexFormat::Bf16, shape)
}

#[test]
fn deleting_an_edge_is_noticed_unless_another_path_stands_for_it() {
    for shape in [StepShape::decode(4, 1024), StepShape::prefill(1024)] {
        let step = tiny(shape);
        let plan = Plan::shared(&step.graph);
        let mut noticed = 0;
        for at in 0..step.graph.edges.len() {
            let mut cut = step.graph.clone();
            let edge = cut.edges.remove(at);
            let flagged = prove(&Program::of(&cut, &plan)).is_err();
            assert!(flagged || reaches(&cut, edge.from.0, edge.to.0), "{edge:?} was needed by nothing");
            noticed += usize::from(flagged);
        }
        assert!(noticed * 10 >= step.graph.edges.len() * 9, "{noticed} of {}", step.graph.edges.len());
    }
}

fn reaches(graph: &flashlane::step::Graph, from: u32, to: u32) -> bool {
    from == to || graph.edges.iter().filter(|e| e.from.0 == from).any(|e| reaches(graph, e.to.0, to))
}

/// Which check finds a mutant in a decode step.
fn caught(step: &ModelStep, mutant: Mutant) -> Vec<Check> {
    let plan = Plan::shared(&step.graph);
    let mutated = mutant.apply(&step.graph, &plan).unwrap();
    let mut caught = Vec::new();
    if prove(&Program::of(&mutated.graph, &mutated.plan)).is_err() {
        caught.push(Check::Order);
    }
    let replay = Replay { name: "decode", graph: &mutated.graph, plan: &mutated.plan, live: &mutated.live };
    if caught.is_empty() && prove_loop(&[replay], Drive::default()).is_err() {
        caught.push(Check::Loop);
    }
    let built = |length| mutant.bake(&step.graph, length).unwrap_or_else(|| step.graph.clone());
    if purity(&built(1), &built(step.shape.max_positions)).is_err() {
        caught.push(Check::Purity);
    }
    if Layout::of(&mutated.graph).is_err() {
        caught.push(Check::Layout);
    }
    caught
}

#[test]
fn every_mutant_is_found_by_the_check_that_is_there_for_it() {
    for step in
        [tiny(StepShape::decode(4, 1024)), step(&flash(), IndexFormat::Bf16, StepShape::decode(32, 131_072))]
    {
        for mutant in Mutant::ALL {
            let caught = caught(&step, mutant);
            assert!(caught.contains(&mutant.check()), "{mutant:?}: {caught:?}");
        }
    }
}

#[test]
fn a_live_value_overwritten_on_its_own_lane_is_a_value_hazard_and_nothing_else() {
    let step = tiny(StepShape::decode(4, 1024));
    let mutated = Mutant::SerialClobber.apply(&step.graph, &Plan::shared(&step.graph)).unwrap();
    let hazards = prove(&Program::of(&mutated.graph, &mutated.plan)).unwrap_err();
    assert!(hazards.iter().all(|h| h.rule == Rule::Value), "{}", hazards[0]);
}

#[test]
fn the_loop_is_proved_for_every_pair_of_buckets_and_each_way_to_break_it_is_found() {
    let shapes = [
        ("decode 1", StepShape::decode(1, 1024)),
        ("decode 4", StepShape::decode(4, 1024)),
        ("prefill", StepShape::prefill(1024)),
    ];
    let steps = shapes.map(|(name, shape)| (name, tiny(shape)));
    let plans: Vec<Plan> = steps.iter().map(|(_, s)| Plan::shared(&s.graph)).collect();
    let replays: Vec<Replay<'_>> = steps
        .iter()
        .zip(&plans)
        .map(|((name, step), plan)| Replay { name, graph: &step.graph, plan, live: &[] })
        .collect();
    let sound = Drive::default();
    let proved = prove_loop(&replays, sound).unwrap_or_else(|h| panic!("{}", h[0]));
    assert!(proved.pairs > 10_000, "{proved:?}");
    for sound in [Drive { ring: 1, ahead: 1, ..sound }, Drive { early_settled: true, ..sound }] {
        assert!(prove_loop(&replays, sound).is_ok(), "{sound:?}");
    }
    let broken = [
        (Drive { ring: 1, ..sound }, "pinned"),
        (Drive { ahead: 3, ..sound }, "pinned"),
        (Drive { frees_after_step: false, ..sound }, "page free"),
        (Drive { canary_in_order: false, ..sound }, "canary"),
    ];
    for (drive, what) in broken {
        let hazards = prove_loop(&replays, drive).unwrap_err();
        assert!(hazards.iter().any(|h| h.to_string().contains(what)), "{drive:?}: {}", hazards[0]);
    }
}

#[test]
fn a_bucket_is_pure_and_its_fingerprint_sees_every_change() {
    let shape = StepShape::decode(4, 1024);
    let (a, b) = (tiny(shape), tiny(shape));
    assert_eq!(purity(&a.graph, &b.graph), Ok(()));
    let plan = Plan::shared(&a.graph);
    let print = fingerprint(&a.graph, &plan);
    assert_eq!(print, fingerprint(&b.graph, &Plan::shared(&b.graph)));
    for mutant in Mutant::ALL {
        let mutated = mutant.apply(&a.graph, &plan).unwrap();
        assert_ne!(print, fingerprint(&mutated.graph, &mutated.plan), "{mutant:?}");
    }
    let baked = Mutant::BakedLength.bake(&b.graph, 1).unwrap();
    let words = purity(&a.graph, &baked).unwrap_err().to_string();
    assert!(words.contains("topk@") && words.contains("1024 in one build"), "{words}");
}
