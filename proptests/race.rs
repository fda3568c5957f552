//! The model's step in the race simulator: the true step gives the same bytes in every order, and mutants do not.

use flashlane::cpu::any_order::{Order, run_step};
use flashlane::format::index_row::IndexFormat;
use flashlane::model::StepShape;
use flashlane::ops::{BufferId, Dtype, Value};
use flashlane::step::{Check, Class, Graph, Memory, Mutant, NodeId, Plan, Program, Resident, prove};

use crate::inputs::Segment;
use crate::world::{Executor, World, world};

const REQUESTS: [Segment; 4] = [(511, 1), (130, 1), (0, 0), (259, 1)];

/// What a step leaves: its outputs, and everything that outlives it.
#[derive(Clone, PartialEq)]
struct Outcome(Vec<Vec<u8>>);

fn outcome(graph: &Graph, memory: &Memory, resident: &Resident) -> Outcome {
    let outputs = graph.buffer_ids().filter(|id| graph.buffer(*id).class == Class::Output);
    let bytes = |id: BufferId| Value { buffer: id, dtype: Dtype::U8, len: graph.buffer(id).bytes };
    let mut all: Vec<Vec<u8>> = outputs.map(|id| memory.host::<u8>(&bytes(id)).to_vec()).collect();
    all.extend(resident.pools.iter().chain(&resident.states).map(|b| b.to_vec()));
    Outcome(all)
}

/// Runs the step `times` from the same beginning.
fn outcomes(world: &World, graph: &Graph, plan: &Plan, order: Order, times: usize) -> Vec<Outcome> {
    let Executor::Cpu(weights) = &world.executors[1] else { panic!("the second executor is the CPU's") };
    let run = |seed| {
        let mut memory = Memory::new(graph, plan);
        for id in graph.buffer_ids().filter(|id| graph.buffer(*id).class == Class::Input) {
            let value = Value { buffer: id, dtype: Dtype::U8, len: graph.buffer(id).bytes };
            memory.host_mut::<u8>(&value).copy_from_slice(world.memory.host::<u8>(&value));
        }
        let mut resident = world.resident.clone();
        run_step(graph, plan, &mut memory, &mut resident, weights, (order, seed)).unwrap();
        outcome(graph, &memory, &resident)
    };
    (0..times as u64).map(run).collect()
}

/// Outcomes that differ from `truth`.
fn differing(
    world: &World,
    graph: &Graph,
    plan: &Plan,
    order: Order,
    times: usize,
    truth: &Outcome,
) -> usize {
    outcomes(world, graph, plan, order, times).iter().filter(|outcome| *outcome != truth).count()
}

fn truth(world: &World) -> Outcome {
    let plan = Plan::unshared(&world.step.graph);
    outcomes(world, &world.step.graph, &plan, Order::Serial, 1).remove(0)
}

#[test]
fn the_true_step_is_the_same_in_every_order() {
    for index in [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4, IndexFormat::F32] {
        for (shape, requests) in
            [(StepShape::decode(4, 1024), &REQUESTS[..]), (StepShape::prefill(1024), &[(256, 200)])]
        {
            let world = world(index, shape, requests, 1);
            let truth = truth(&world);
            let times = if shape.per_request == 1 { 20 } else { 2 };
            for order in [Order::Any, Order::Worst, Order::Serial] {
                let wrong = differing(&world, &world.step.graph, &world.plan, order, times, &truth);
                assert_eq!(wrong, 0, "{index:?} {order:?}");
            }
        }
    }
}

#[test]
fn order_mutants_are_silent_in_append_order_and_corrupt_in_others() {
    let world = world(IndexFormat::Bf16, StepShape::decode(4, 1024), &REQUESTS, 1);
    let truth = truth(&world);
    for mutant in Mutant::ALL.into_iter().filter(|m| m.check() == Check::Order) {
        let mutated = mutant.apply(&world.step.graph, &world.plan).unwrap();
        let wrong = |order, times| differing(&world, &mutated.graph, &mutated.plan, order, times, &truth);
        let silent = wrong(Order::Serial, 1) == 0;
        assert_eq!(silent, mutant != Mutant::SerialClobber, "{mutant:?}");
        let (any, worst) = (wrong(Order::Any, 60), wrong(Order::Worst, 60));
        println!("{}: {any} of 60 in any order, {worst} of 60 in the worst", mutant.slug());
        assert!(any + worst > 0, "{mutant:?} never corrupts");
    }
}

#[test]
fn baked_mutants_corrupt_in_any_order_once_contexts_are_longer_than_captured() {
    let world = world(IndexFormat::Bf16, StepShape::decode(4, 1024), &REQUESTS, 1);
    let truth = truth(&world);
    for mutant in [Mutant::BakedLength, Mutant::BakedStride] {
        let mutated = mutant.apply(&world.step.graph, &world.plan).unwrap();
        let wrong = differing(&world, &mutated.graph, &mutated.plan, Order::Serial, 1, &truth);
        assert_eq!(wrong, 1, "{mutant:?}");
    }
    let short = [(15, 1), (0, 0), (0, 0), (0, 0)];
    let world = self::world(IndexFormat::Bf16, StepShape::decode(4, 1024), &short, 1);
    let mutated = Mutant::BakedLength.apply(&world.step.graph, &world.plan).unwrap();
    let truth = self::truth(&world);
    assert_eq!(differing(&world, &mutated.graph, &mutated.plan, Order::Serial, 1, &truth), 0, "captured");
}

/// Attention that no edge holds back until the window's store is done reads the row as it was, as it becomes, or half of each,
/// which only overlap in time can give.
#[test]
fn an_unordered_access_to_pool_rows_tears_them() {
    let requests = [(130, 1), (0, 0), (0, 0), (0, 0)];
    let world = world(IndexFormat::Bf16, StepShape::decode(4, 1024), &requests, 1);
    let truth = truth(&world);
    let mut cut = world.step.graph.clone();
    let op = |id: NodeId| world.step.graph.node(id).op.name();
    let planted =
        cut.edges.iter().position(|e| (op(e.from), op(e.to)) == ("rope_store", "attention")).unwrap();
    cut.edges.remove(planted);
    // Nothing shares bytes, so that the row is the only thing in danger.
    let plan = Plan::unshared(&cut);
    let hazards = prove(&Program::of(&cut, &plan)).unwrap_err();
    assert!(hazards.iter().all(|h| h.space.symbolic()), "{}", hazards[0]);
    assert_eq!(differing(&world, &cut, &plan, Order::Serial, 1, &truth), 0);
    let mut distinct: Vec<Outcome> = Vec::new();
    for outcome in outcomes(&world, &cut, &plan, Order::Any, 200) {
        if !distinct.contains(&outcome) {
            distinct.push(outcome);
        }
    }
    assert!(distinct.contains(&truth) && distinct.len() > 2, "{} outcomes", distinct.len());
}

/// The host reads the live output once the next step has run.
#[test]
fn a_live_output_in_a_shared_arena_is_the_next_steps() {
    let world = world(IndexFormat::Bf16, StepShape::decode(4, 1024), &REQUESTS, 1);
    let mutated = Mutant::SharedArena.apply(&world.step.graph, &world.plan).unwrap();
    let graph = &mutated.graph;
    let [output] = mutated.live[..] else { panic!("{:?}", mutated.live) };
    let at = mutated.plan.offsets[output.0 as usize].unwrap();
    let Executor::Cpu(weights) = &world.executors[1] else { panic!("the second executor is the CPU's") };
    let mut memory = Memory::new(graph, &mutated.plan);
    let mut resident = world.resident.clone();
    let mut read = |token: i32| {
        for id in graph.buffer_ids().filter(|id| graph.buffer(*id).class == Class::Input) {
            let value = Value { buffer: id, dtype: Dtype::U8, len: graph.buffer(id).bytes };
            memory.host_mut::<u8>(&value).copy_from_slice(world.memory.host::<u8>(&value));
        }
        memory.host_mut::<i32>(&world.step.io.token).fill(token);
        flashlane::cpu::serial::run_step(graph, &mutated.plan, &mut memory, &mut resident, weights).unwrap();
        memory.arena[at..at + graph.buffer(output).bytes].to_vec()
    };
    let first = read(3);
    assert!(first[..4] != [0xff; 4], "a token was sampled");
    assert!((4..40).any(|token| read(token) != first), "what was read in the same place is another step's");
}
