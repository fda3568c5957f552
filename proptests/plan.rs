//! Plans of random steps: proved on every schedule, and close to the least bytes that any plan could use.

use std::time::Instant;

use flashlane::step::{EdgeKind, Plan, Program, largest_clique, largest_peak, prove, serial};

use crate::random_graph::random_graph;

#[test]
fn shared_plans_prove_forked_serial_and_programmatic() {
    for seed in 0..600 {
        let graph = random_graph(seed, 40);
        let plan = Plan::shared(&graph);
        let mut programmatic = graph.clone();
        programmatic.edges.iter_mut().for_each(|e| e.kind = EdgeKind::Programmatic);
        for schedule in [&graph, &serial(&graph), &programmatic] {
            let verdict = prove(&Program::of(schedule, &plan));
            assert!(verdict.is_ok(), "seed {seed}: {}", verdict.unwrap_err()[0]);
        }
    }
}

#[test]
fn every_edge_that_a_step_needs_is_missed_when_deleted() {
    let mut needed = 0;
    for seed in 0..60 {
        let graph = random_graph(seed, 30);
        let plan = Plan::unshared(&graph);
        for at in 0..graph.edges.len() {
            let mut cut = graph.clone();
            cut.edges.remove(at);
            // Planned anew for the edges that are left, only a value that is read without its writer can be wrong.
            let shared = Plan::shared(&cut);
            let (own, planned) = (prove(&Program::of(&cut, &plan)), prove(&Program::of(&cut, &shared)));
            assert_eq!(own.is_err(), planned.is_err(), "seed {seed}, edge {at}");
            needed += usize::from(own.is_err());
        }
    }
    assert!(needed > 500, "{needed} edges were needed");
}

#[test]
fn the_arena_is_within_three_tenths_of_the_lower_bound() {
    let (mut worst, mut sum) = (0.0f64, 0.0f64);
    for seed in 0..100 {
        let graph = random_graph(seed, 60);
        let plan = Plan::shared(&graph);
        let bound = largest_peak(&graph, 300, seed).max(largest_clique(&graph));
        let ratio = plan.arena_bytes as f64 / bound as f64;
        assert!(ratio >= 1.0, "seed {seed}: an arena below its lower bound");
        worst = worst.max(ratio);
        sum += ratio;
    }
    println!("arena over lower bound: worst {worst:.3}, mean {:.3}", sum / 100.0);
    assert!(worst <= 1.3, "{worst}");
}

#[test]
fn a_large_step_takes_milliseconds() {
    let graph = random_graph(7, 2_500);
    let start = Instant::now();
    let plan = Plan::shared(&graph);
    let planned = start.elapsed();
    let program = Program::of(&graph, &plan);
    let start = Instant::now();
    let proved = prove(&program).unwrap();
    println!("plan {planned:?}, proof {:?}, {proved:?}, arena {}", start.elapsed(), plan.arena_bytes);
    assert_eq!(proved.nodes, graph.nodes.len());
}
