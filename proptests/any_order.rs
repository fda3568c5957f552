//! The race simulator on random steps whose operations mix every byte that they read into every byte that they write.

use std::collections::BTreeMap;

use flashlane::cpu::any_order::{AnyOrder, Order};
use flashlane::ops::{BufferId, Op, Value};
use flashlane::step::{Graph, Memory, Node, OperandError, Operands, Plan, Random, Resident};

use crate::random_graph::random_graph;

/// What each value held when it was written, as a hash.
pub(crate) type Results = BTreeMap<BufferId, u64>;

fn operands(op: &Op) -> (Vec<Value>, Vec<Value>) {
    match op {
        Op::RmsNorm(o) => (vec![o.x], vec![o.out]),
        Op::HyperPost(o) => (vec![o.streams, o.y, o.post, o.comb], vec![o.out]),
        Op::HyperPre(o) => (vec![o.streams], vec![o.out, o.post, o.comb]),
        other => panic!("{} is not in random graphs", other.name()),
    }
}

fn mix(node: &Node, mut memory: Operands<'_>, results: &mut Results) -> Result<(), OperandError> {
    let (reads, writes) = operands(&node.op);
    let mut hash = 1u64;
    for value in &reads {
        for word in memory.read::<u8>(value)?.chunks_exact(8) {
            let word = word.iter().fold(0, |w, b| w << 8 | u64::from(*b));
            hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
    for value in &writes {
        let mut random = Random::new(hash ^ u64::from(value.buffer.0));
        results.insert(value.buffer, hash);
        for word in memory.write::<u8>(value)?.chunks_exact_mut(8) {
            word.copy_from_slice(&random.bits().to_le_bytes());
        }
    }
    Ok(())
}

/// Runs one step per seed and gives the results of each.
pub(crate) fn simulate(graph: &Graph, plan: &Plan, order: Order, seed: u64, steps: usize) -> Vec<Results> {
    let mut memory = Memory::new(graph, plan);
    let mut simulator = AnyOrder::new(graph, plan, order, seed).with_poison();
    let step = |_| {
        let mut results = Results::new();
        let mut execute = |_: &Graph, node: &Node, operands: Operands<'_>| mix(node, operands, &mut results);
        let ran: Result<(), OperandError> =
            simulator.step(&mut memory, &mut Resident::default(), &mut execute);
        ran.unwrap();
        results
    };
    (0..steps).map(step).collect()
}

pub(crate) fn truth(graph: &Graph) -> Results {
    simulate(graph, &Plan::unshared(graph), Order::Serial, 0, 1).remove(0)
}

#[test]
fn a_proved_step_gives_the_same_bytes_in_every_order() {
    for seed in 0..40 {
        let graph = random_graph(seed, 40);
        let (plan, truth) = (Plan::shared(&graph), truth(&graph));
        for order in [Order::Serial, Order::Any, Order::Worst] {
            for results in simulate(&graph, &plan, order, seed, 25) {
                assert_eq!(results, truth, "seed {seed}, {order:?}");
            }
        }
    }
}

#[test]
fn orders_differ_from_step_to_step_and_repeat_with_their_seed() {
    let graph = random_graph(3, 40);
    let plan = Plan::shared(&graph);
    let trace = |seed| {
        let mut memory = Memory::new(&graph, &plan);
        let mut simulator = AnyOrder::new(&graph, &plan, Order::Any, seed);
        let mut trace = Vec::new();
        for _ in 0..4 {
            let mut ids = Vec::new();
            let mut execute = |_: &Graph, node: &Node, operands: Operands<'_>| {
                ids.push(operands_of(node));
                mix(node, operands, &mut Results::new())
            };
            simulator.step(&mut memory, &mut Resident::default(), &mut execute).unwrap();
            trace.push(ids);
        }
        trace
    };
    let (one, two) = (trace(1), trace(2));
    assert_eq!(one, trace(1));
    assert_ne!(one, two);
    assert_ne!(one[0], one[1]);
}

fn operands_of(node: &Node) -> BufferId {
    operands(&node.op).1[0].buffer
}
