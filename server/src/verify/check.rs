//! Runs the checks: the proof of the step, of the loop over every ordered pair of steps, purity and layout.

use std::time::{Duration, Instant};

use anyhow::Context;
use flashlane::engine::DRIVE;
use flashlane::model::{StepShape, build_step};
use flashlane::ops::BufferId;
use flashlane::step::{
    Drive, Graph, Hazard, Impure, Layout, LayoutError, Mutant, Plan, Program, Proved, Replay, prove,
    prove_loop, purity, serial,
};

use super::Schedule;
use super::target::Target;

/// The loops that are proved: of an engine that waits for each step, and of one that prepares the next meanwhile.
const LOOPS: [(usize, Drive); 2] = [(1, Drive { ring: 1, ahead: 1, ..DRIVE }), (DRIVE.ahead, DRIVE)];

/// A step as it is to run.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) graph: Graph,
    /// Without schedule, as a device takes it.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a GPU takes it"))]
    pub(super) unscheduled: Graph,
    pub(super) plan: Plan,
    live: Vec<BufferId>,
}

/// Steps in a row.
#[derive(Debug)]
pub(super) struct Looped {
    /// Steps that may be under way at once.
    pub(super) in_flight: usize,
    pub(super) result: Result<Proved, Vec<Hazard>>,
}

#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) build: Duration,
    pub(super) proof: Duration,
    pub(super) looped: Duration,
    pub(super) total: Duration,
}

/// A step with all that was found about it.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) case: Case,
    /// The step without mutant and schedule.
    pub(super) built: Graph,

    pub(super) mutant: Option<(Mutant, String)>,
    pub(super) step: Result<Proved, Vec<Hazard>>,
    /// Empty if the step itself is not proved: steps in a row cannot be better.
    pub(super) loops: Vec<Looped>,
    pub(super) purity: Result<(), Impure>,
    pub(super) layout: Result<(), LayoutError>,
    pub(super) times: Times,
}

impl Checked {
    /// # Errors
    /// The step cannot be built, or has no place for the mutant.
    pub(super) fn new(target: &Target, mutant: Option<Mutant>) -> anyhow::Result<Self> {
        let start = Instant::now();
        let built = build(target, target.shape())?;
        let mut others = Vec::new();
        for shape in target.shapes.iter().filter(|s| **s != target.shape()) {
            others.push(case(target, *shape, &build(target, *shape)?));
        }
        let (case, mutant) = focus(target, &built, mutant)?;
        let mut times = Times { build: start.elapsed(), ..Times::default() };

        let step = prove(&Program::of(&case.graph, &case.plan)).map_err(told);
        times.proof = start.elapsed() - times.build;
        let loops = if step.is_ok() { loops(&case, &others) } else { Vec::new() };
        times.looped = start.elapsed() - times.build - times.proof;
        let purity = pure(target, &built, mutant.as_ref().map(|(m, _)| *m))?;
        let layout = others.iter().chain([&case]).try_for_each(|c| Layout::of(&c.graph).map(|_| ()));
        times.total = start.elapsed();
        Ok(Self { case, built, mutant, step, loops, purity, layout, times })
    }
}

fn build(target: &Target, shape: StepShape) -> anyhow::Result<Graph> {
    let built = build_step(&target.weights, &target.layout, target.engine.numerics, shape);
    Ok(built.with_context(|| format!("{shape} cannot be built"))?.graph)
}

/// The plan is made for the forked graph and holds for both schedules.
fn case(target: &Target, shape: StepShape, graph: &Graph) -> Case {
    Case {
        name: shape.to_string(),
        plan: Plan::shared(graph),
        graph: scheduled(target, graph.clone()),
        unscheduled: graph.clone(),
        live: Vec::new(),
    }
}

fn scheduled(target: &Target, graph: Graph) -> Graph {
    match target.schedule {
        Schedule::Serial => serial(&graph),
        Schedule::Forked => graph,
    }
}

/// The step that is looked at, with its mutant and what that changed.
fn focus(
    target: &Target,
    built: &Graph,
    mutant: Option<Mutant>,
) -> anyhow::Result<(Case, Option<(Mutant, String)>)> {
    let case = case(target, target.shape(), built);
    let Some(mutant) = mutant else { return Ok((case, None)) };
    let mutated = mutant.apply(built, &case.plan);
    let mutated =
        mutated.with_context(|| format!("--mutant {}: {} has no place for it", mutant.slug(), case.name))?;
    let (plan, live) = (mutated.plan, mutated.live);
    let graph = scheduled(target, mutated.graph.clone());
    let case = Case { name: case.name, graph, unscheduled: mutated.graph, plan, live };
    Ok((case, Some((mutant, mutated.place))))
}

/// The hazards that explain most come first: those of one value, then those of nodes close together.
fn told(mut hazards: Vec<Hazard>) -> Vec<Hazard> {
    hazards.sort_by_key(|h| {
        let second = h.second.as_ref();
        let distance = second.map_or(0, |s| s.node.0.abs_diff(h.first.node.0));
        (second.is_some_and(|s| s.object != h.first.object), distance)
    });
    hazards
}

fn loops(case: &Case, others: &[Case]) -> Vec<Looped> {
    let replays: Vec<Replay<'_>> = [case]
        .into_iter()
        .chain(others)
        .map(|c| Replay { name: &c.name, graph: &c.graph, plan: &c.plan, live: &c.live })
        .collect();
    LOOPS
        .into_iter()
        .map(|(in_flight, drive)| Looped { in_flight, result: prove_loop(&replays, drive) })
        .collect()
}

/// Builds the step again, as for another request: what a mutant bakes in differs.
fn pure(target: &Target, built: &Graph, mutant: Option<Mutant>) -> anyhow::Result<Result<(), Impure>> {
    let again = build(target, target.shape())?;
    let baked = |graph: Graph, length| mutant.and_then(|m| m.bake(&graph, length)).unwrap_or(graph);
    Ok(purity(&baked(built.clone(), 1), &baked(again, target.shape().max_positions)))
}
