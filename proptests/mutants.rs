//! Mutants of random steps: found by the check that is theirs, silent where production was, corrupting where it was not.

use flashlane::cpu::any_order::Order;
use flashlane::step::{Mutant, Mutated, Plan, Program, Rule, prove};

use crate::any_order::{simulate, truth};
use crate::random_graph::random_graph;

const STEPS: usize = 160;

fn mutated(mutant: Mutant, seed: u64) -> Option<(flashlane::step::Graph, Mutated)> {
    let graph = random_graph(seed, 50);
    let plan = Plan::shared(&graph);
    let mutated = mutant.apply(&graph, &plan)?;
    Some((graph, mutated))
}

/// Finds the mutant in random steps, and runs them.
fn found_and_corrupting(mutant: Mutant, rule: Rule, silent_in_append_order: bool) {
    let (mut flagged, mut corrupting) = (0, 0);
    for (graph, mutated) in (0..24).filter_map(|seed| mutated(mutant, seed)) {
        let truth = truth(&graph);
        let serial = simulate(&mutated.graph, &mutated.plan, Order::Serial, 0, 1);
        assert_eq!(serial[0] == truth, silent_in_append_order, "{}", mutated.place);
        let wrong = [Order::Any, Order::Worst].map(|order| {
            let runs = simulate(&mutated.graph, &mutated.plan, order, 5, STEPS / 2);
            runs.iter().filter(|r| **r != truth).count()
        });
        let wrong = wrong[0] + wrong[1];
        match prove(&Program::of(&mutated.graph, &mutated.plan)) {
            Ok(_) => assert_eq!(wrong, 0, "{mutant:?}: proved and corrupting, {}", mutated.place),
            Err(hazards) => {
                assert!(hazards.iter().any(|h| h.rule == rule), "{}", hazards[0]);
                flagged += 1;
                corrupting += usize::from(wrong > 0);
            }
        }
    }
    println!("{mutant:?}: {flagged} found, {corrupting} corrupting within {STEPS} steps");
    assert!(flagged >= 10, "{flagged} found");
    assert!(corrupting * 10 >= flagged * 9, "{corrupting} of {flagged} corrupting");
}

#[test]
fn free_by_host_order() {
    found_and_corrupting(Mutant::FreeByHostOrder, Rule::Order, true);
}

#[test]
fn dropped_join() {
    found_and_corrupting(Mutant::DroppedJoin, Rule::Order, true);
}

#[test]
fn shared_scratch() {
    found_and_corrupting(Mutant::SharedScratch, Rule::Order, true);
}

#[test]
fn pdl_as_order() {
    found_and_corrupting(Mutant::PdlAsOrder, Rule::Order, true);
}

#[test]
fn serial_clobber() {
    found_and_corrupting(Mutant::SerialClobber, Rule::Value, false);
}

#[test]
fn slugs_name_their_mutants() {
    for mutant in Mutant::ALL {
        assert_eq!(mutant.slug().parse::<Mutant>(), Ok(mutant));
    }
    let unknown = "free-by-guess".parse::<Mutant>().unwrap_err().to_string();
    assert!(unknown.contains("free-by-guess") && unknown.contains("dropped-join"), "{unknown}");
}
