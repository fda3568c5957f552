//! An engine for the stress harness: its steps run in the race simulator, as they are or with a known bug in them.
//!
//! The scheduler works with the proved steps and seals their inputs as ever. What the device runs is a copy of its own, which
//! a mutant may have changed: a [`Prepared`] is never anything but proved. No server is built on this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::bucket::{Prepared, RING};
use super::device::{Device, Wanted};
use super::handle::{Engine, EngineConfig};
use super::local::LocalError;
use crate::checkpoint::Checkpoint;
use crate::cpu::{self, any_order, any_order::Order};
use crate::model::{CacheLayout, ModelWeights, load};
use crate::step::{
    Bytes, Check, Graph, HostIo, Memory, Mutant, Mutated, Plan, Program, Random, Resident, prove,
};

/// How the steps run.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    /// Each step in an order of its own; `None`: by the executor that serves.
    pub order: Option<Order>,
    /// Percent of the steps that draw an order, as machines are seldom slow; the others run in append order.
    pub percent: usize,
    /// Of the orders.
    pub seed: u64,
    pub mutant: Option<Mutant>,
    /// Dead bytes become NaN also with a mutant, as they always do without one, where a step must not pass by luck.
    pub poison: bool,
    /// Runs the mutant although no proof allows it.
    pub unproved: bool,
    pub rows: RowLog,
}

/// Where a token was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub row: usize,
    /// Rows of the step; 1 in prefill.
    pub bucket: usize,
    pub prefill: bool,
}

/// The rows of all sampled tokens, by the seed of their request's sampling and by position. Greedy requests leave the seed
/// unused, so a caller can number them with it.
#[derive(Clone, Debug, Default)]
pub struct RowLog(Arc<Mutex<HashMap<(u64, usize), Row>>>);

impl RowLog {
    #[must_use]
    pub fn find(&self, seed: u64, position: usize) -> Option<Row> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(seed, position)).copied()
    }

    fn record(&self, of: &Prepared, memory: &HostIo) {
        let (shape, io) = (of.step.shape, &of.step.io);
        let positions = memory.host::<i32>(&io.sample_position);
        let seeds = memory.host::<u64>(&io.seed);
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, (&seed, &position)) in seeds.iter().zip(positions).enumerate() {
            if let Ok(position) = usize::try_from(position) {
                let row = Row { row, bucket: shape.requests, prefill: shape.per_request > 1 };
                log.insert((seed, position), row);
            }
        }
    }
}

/// Why a simulated engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error("the step with {slug} in it is refused: {why}")]
    Refused { slug: &'static str, why: String },
    #[error("no step of this model has a place for {0}")]
    NoPlace(&'static str),
    #[error(
        "{0} shows when a step's output is read where it lies after the next step has begun, and this engine copies \
         outputs out before; `verify` finds it in the proof of the loop"
    )]
    NotInThisLoop(&'static str),
}

impl Engine {
    /// As [`Engine::on_cpu`], with steps that run as `simulation` says.
    ///
    /// # Errors
    /// [`SimulationError`], in sentences; a mutant is one unless `simulation.unproved`.
    pub fn simulated(
        checkpoint: &Checkpoint,
        config: EngineConfig,
        simulation: Simulation,
    ) -> Result<Self, SimulationError> {
        let local = LocalError::from;
        config.check().map_err(local)?;
        let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
        let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
        let steps = config.prepare(&weights, &layout).map_err(LocalError::from)?;
        let run = copies(&steps, &simulation)?;
        let loaded: cpu::Weights =
            load(&registry, checkpoint).map_err(LocalError::from)?.into_iter().collect();
        let device = Simulated::new(&layout, steps, run, loaded, simulation);
        Engine::start(config, layout, Box::new(device)).map_err(|error| LocalError::from(error).into())
    }
}

/// What runs in the place of each proved step.
fn copies(steps: &[Prepared], simulation: &Simulation) -> Result<Vec<(Graph, Plan)>, SimulationError> {
    let truth = |p: &Prepared| (p.step.graph.clone(), p.plan.clone());
    let Some(mutant) = simulation.mutant else { return Ok(steps.iter().map(truth).collect()) };
    if mutant == Mutant::SharedArena {
        return Err(SimulationError::NotInThisLoop(mutant.slug()));
    }
    let mutated: Vec<_> = steps.iter().map(|p| mutant.apply(&p.step.graph, &p.plan)).collect();
    let Some(place) = mutated.iter().flatten().next() else {
        return Err(SimulationError::NoPlace(mutant.slug()));
    };
    if !simulation.unproved {
        return Err(SimulationError::Refused { slug: mutant.slug(), why: verdict(mutant, place) });
    }
    let copy = |(p, m): (&Prepared, Option<Mutated>)| m.map_or_else(|| truth(p), |m| (m.graph, m.plan));
    Ok(steps.iter().zip(mutated).map(copy).collect())
}

fn verdict(mutant: Mutant, mutated: &Mutated) -> String {
    let hazards = match prove(&Program::of(&mutated.graph, &mutated.plan)) {
        Err(hazards) if mutant.check() == Check::Order => hazards,
        _ => {
            return format!("{}; the check of {} finds it", mutant.about(), mutant.check().name());
        }
    };
    let first = hazards.first().map_or_else(String::new, ToString::to_string);
    format!("it is not free of hazards ({} found): {first}", hazards.len())
}

/// Runs the copies; shows the proved steps.
struct Simulated {
    steps: Arc<[Prepared]>,
    run: Vec<(Graph, Plan)>,
    /// By step and slot.
    memory: Vec<[Memory; RING]>,
    resident: Resident,
    weights: cpu::Weights,
    order: Option<Order>,
    percent: usize,
    random: Random,
    poison: bool,
    rows: RowLog,
}

impl Simulated {
    fn new(
        layout: &CacheLayout,
        steps: Vec<Prepared>,
        run: Vec<(Graph, Plan)>,
        weights: cpu::Weights,
        simulation: Simulation,
    ) -> Self {
        let resident = Resident {
            pools: layout.pools().map(|p| Bytes::zeroed(p.pages * p.page_bytes)).collect(),
            states: layout.states().map(|s| Bytes::zeroed(s.slots * s.len * 4)).collect(),
        };
        let both = |(graph, plan): &(Graph, Plan)| std::array::from_fn(|_| Memory::new(graph, plan));
        let memory = run.iter().map(both).collect();
        let Simulation { order, percent, seed, mutant, poison, rows, .. } = simulation;
        let (random, poison) = (Random::new(seed), poison || mutant.is_none());
        Self { steps: steps.into(), run, memory, resident, weights, order, percent, random, poison, rows }
    }
}

impl Device for Simulated {
    fn steps(&self) -> Arc<[Prepared]> {
        Arc::clone(&self.steps)
    }

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        &mut self.memory[step][slot]
    }

    fn launch(&mut self, step: usize, slot: usize, _: &Wanted) -> Result<(), String> {
        let ((graph, plan), memory) = (&self.run[step], &mut self.memory[step][slot]);
        self.rows.record(&self.steps[step], memory);
        let (resident, weights) = (&mut self.resident, &self.weights);
        let Some(order) = self.order else {
            let ran = cpu::serial::run_step(graph, plan, memory, resident, weights);
            return ran.map_err(|error| error.to_string());
        };
        let drawn = self.random.chance(self.percent);
        let (order, seed) = (if drawn { order } else { Order::Serial }, self.random.bits());
        let run = if self.poison { any_order::run_step } else { any_order::run_step_unpoisoned };
        run(graph, plan, memory, resident, weights, (order, seed)).map_err(|error| error.to_string())
    }

    /// The step ran when it was launched.
    fn wait(&mut self, _: usize, _: usize) -> Result<(), String> {
        Ok(())
    }
}
