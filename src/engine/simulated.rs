//! An engine for the stress harness: its steps run in the race simulator, as they are or with a known bug in them.
//!
//! The scheduler works with the proved steps and seals their inputs as ever. What the device runs is a copy of its own, which
//! a mutant may have changed: a [`Prepared`] is never anything but proved. No server is built on this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bucket::{Prepared, RING};
use super::device::{Device, Wanted, host_bytes};
use super::handle::{Engine, EngineConfig};
use super::inputs::fill;
use super::local::LocalError;
use crate::checkpoint::Checkpoint;
use crate::cpu::any_order::{AnyOrder, Order};
use crate::cpu::{self, ExecError};
use crate::instrument::{Piece, Probe, Store, Tamper, edit_host, run_in_pieces};
use crate::model::{CacheLayout, ModelWeights, load};
use crate::ops::BufferId;
use crate::step::{
    Bytes, Check, Class, Graph, HostIo, Memory, Mutant, Mutated, Plan, Program, Random, Resident, prove,
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
    /// Begins another replay, of padding alone, before the host reads what a step left, as an engine does that prepares
    /// steps ahead: none of it in append order, a part in any order, all of it in the worst.
    pub ahead: bool,
    /// Runs each step as it was proved too, on copies of what it is given, to count those that leave something else.
    pub judged: bool,
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

/// The rows of all sampled tokens, by the seed of their request's sampling and by position, and what became of the steps.
/// Greedy requests leave the seed unused, so a caller can number them with it.
#[derive(Clone, Debug, Default)]
pub struct RowLog(Arc<Mutex<Log>>);

#[derive(Debug, Default)]
struct Log {
    rows: HashMap<(u64, usize), Row>,
    steps: Steps,
}

/// Steps that have run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    pub run: usize,
    /// Of these, if they are judged, those whose outputs or cache rows are not the proved step's.
    pub wrong: usize,
}

impl RowLog {
    #[must_use]
    pub fn find(&self, seed: u64, position: usize) -> Option<Row> {
        self.log().rows.get(&(seed, position)).copied()
    }

    #[must_use]
    pub fn steps(&self) -> Steps {
        self.log().steps
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, of: &Prepared, memory: &HostIo) {
        let (shape, io) = (of.step.shape, &of.step.io);
        let positions = memory.host::<i32>(&io.sample_position);
        let seeds = memory.host::<u64>(&io.seed);
        let mut log = self.log();
        log.steps.run += 1;
        for (row, (&seed, &position)) in seeds.iter().zip(positions).enumerate() {
            if let Ok(position) = usize::try_from(position) {
                let row = Row { row, bucket: shape.requests, prefill: shape.per_request > 1 };
                log.rows.insert((seed, position), row);
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

/// What runs in the place of a proved step.
struct Copy {
    graph: Graph,
    plan: Plan,
    /// Outputs that the host reads in the arena.
    live: Vec<BufferId>,
}

impl Copy {
    fn truth(of: &Prepared) -> Self {
        Self { graph: of.step.graph.clone(), plan: of.plan.clone(), live: Vec::new() }
    }
}

impl From<Mutated> for Copy {
    fn from(mutated: Mutated) -> Self {
        let Mutated { graph, plan, live, .. } = mutated;
        Self { graph, plan, live }
    }
}

fn copies(steps: &[Prepared], simulation: &Simulation) -> Result<Vec<Copy>, SimulationError> {
    let Some(mutant) = simulation.mutant else { return Ok(steps.iter().map(Copy::truth).collect()) };
    let mutated: Vec<_> = steps.iter().map(|p| mutant.apply(&p.step.graph, &p.plan)).collect();
    let Some(place) = mutated.iter().flatten().next() else {
        return Err(SimulationError::NoPlace(mutant.slug()));
    };
    if !simulation.unproved {
        return Err(SimulationError::Refused { slug: mutant.slug(), why: verdict(mutant, place) });
    }
    Ok(steps.iter().zip(mutated).map(|(p, m)| m.map_or_else(|| Copy::truth(p), Copy::from)).collect())
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
    run: Vec<Copy>,
    /// Inputs and outputs, by step and slot.
    memory: Vec<[Memory; RING]>,
    /// Of replays of padding alone.
    idle: Vec<Memory>,
    /// All steps share it.
    arena: Bytes,
    resident: Resident,
    weights: cpu::Weights,
    random: Random,
    simulation: Simulation,
}

impl Simulated {
    fn new(
        layout: &CacheLayout,
        steps: Vec<Prepared>,
        run: Vec<Copy>,
        weights: cpu::Weights,
        simulation: Simulation,
    ) -> Self {
        let resident = Resident {
            pools: layout.pools().map(|p| Bytes::zeroed(p.pages * p.page_bytes)).collect(),
            states: layout.states().map(|s| Bytes::zeroed(s.slots * s.len * 4)).collect(),
        };
        // With the outputs of the proved step: the host reads one that lies in the arena through a copy.
        let memory = |p: &Prepared| Memory::new(&p.step.graph, &Plan::default());
        let mut idle: Vec<Memory> = steps.iter().map(memory).collect();
        let memory = idle.iter().map(|m| std::array::from_fn(|_| m.clone())).collect();
        idle.iter_mut().zip(&steps).for_each(|(memory, p)| fill(&p.step, memory, &[]));
        let arena = Bytes::zeroed(run.iter().map(|c| c.plan.arena_bytes).max().unwrap_or(0));
        let random = Random::new(simulation.seed);
        Self { steps: steps.into(), run, memory, idle, arena, resident, weights, random, simulation }
    }

    /// Runs a step as the simulation says.
    fn simulate(&mut self, step: usize, slot: usize) -> Result<(), ExecError> {
        let Some(order) = self.simulation.order else {
            let (copy, memory) = (&self.run[step], &mut self.memory[step][slot]);
            std::mem::swap(&mut self.arena, &mut memory.arena);
            let ran =
                cpu::serial::run_step(&copy.graph, &copy.plan, memory, &mut self.resident, &self.weights);
            std::mem::swap(&mut self.arena, &mut memory.arena);
            return ran;
        };
        let drawn = self.random.chance(self.simulation.percent);
        let order = if drawn { order } else { Order::Serial };
        self.replay(step, order, usize::MAX, Some(slot))?;
        if self.simulation.ahead {
            let next = self.random.below(self.run.len());
            let whole = AnyOrder::phases(&self.run[next].graph);
            let phases = match order {
                Order::Serial => 0,
                Order::Any => self.random.below(whole + 1),
                Order::Worst => whole,
            };
            self.replay(next, order, phases, None)?;
        }
        Ok(())
    }

    /// Runs the first phases of a step on the inputs in a slot, or on padding.
    fn replay(
        &mut self,
        step: usize,
        order: Order,
        phases: usize,
        slot: Option<usize>,
    ) -> Result<(), ExecError> {
        let copy = &self.run[step];
        let memory = slot.map_or(&mut self.idle[step], |slot| &mut self.memory[step][slot]);
        let mut simulator =
            AnyOrder::new(&copy.graph, &copy.plan, order, self.random.bits()).keeping(&copy.live);
        if self.simulation.poison || self.simulation.mutant.is_none() {
            simulator = simulator.with_poison();
        }
        std::mem::swap(&mut self.arena, &mut memory.arena);
        let weights = &self.weights;
        let ran = simulator.begin_step(phases, memory, &mut self.resident, &mut |graph, node, operands| {
            cpu::run(graph, node, operands, weights)
        });
        std::mem::swap(&mut self.arena, &mut memory.arena);
        ran
    }

    /// The host reads the outputs that lie in the arena.
    fn read_live(&mut self, step: usize, slot: usize) {
        let copy = &self.run[step];
        for &output in &copy.live {
            let to = self.memory[step][slot].host_bytes_mut(output);
            if let Some(from) = copy.plan.offsets[output.0 as usize] {
                to.copy_from_slice(&self.arena[from..from + to.len()]);
            }
        }
    }

    /// What the proved step leaves of what this step is given.
    fn truth(&self, step: usize, slot: usize) -> Result<(Memory, Resident), ExecError> {
        let Prepared { step: model, plan, .. } = &self.steps[step];
        let (mut memory, mut resident) = (self.memory[step][slot].clone(), self.resident.clone());
        memory.arena = Bytes::zeroed(plan.arena_bytes);
        cpu::serial::run_step(&model.graph, plan, &mut memory, &mut resident, &self.weights)?;
        Ok((memory, resident))
    }

    fn judge(&self, step: usize, slot: usize, (memory, resident): &(Memory, Resident)) {
        let graph = &self.steps[step].step.graph;
        let mut outputs = graph.buffer_ids().filter(|id| graph.buffer(*id).class == Class::Output);
        let same = outputs.all(|id| self.memory[step][slot].host_bytes(id) == memory.host_bytes(id))
            && self.resident.pools.iter().zip(&resident.pools).all(|(a, b)| **a == **b)
            && self.resident.states.iter().zip(&resident.states).all(|(a, b)| **a == **b);
        self.simulation.rows.log().steps.wrong += usize::from(!same);
    }
}

impl Simulated {
    /// Runs a step in pieces, each in an order of its own, and edits values between them. What is dead in one piece may be
    /// alive in a later one, so nothing is poisoned.
    fn pieces(
        &mut self,
        (step, slot): (usize, usize),
        order: Option<Order>,
        tampers: &mut [Tamper<'_>],
    ) -> Result<(), String> {
        let Self { run, memory, arena, resident, weights, random, .. } = self;
        let (Copy { graph, plan, .. }, memory) = (&run[step], &mut memory[step][slot]);
        std::mem::swap(arena, &mut memory.arena);
        let ran = run_in_pieces(graph, tampers, |piece| {
            let graph = match piece {
                Piece::Edit(value, edit) => {
                    edit_host(plan, memory, value, edit);
                    return Ok(());
                }
                Piece::Run(graph) => graph,
            };
            let ran = match order {
                None => cpu::serial::run_step(graph, plan, memory, resident, weights),
                Some(order) => AnyOrder::new(graph, plan, order, random.bits()).step(
                    memory,
                    resident,
                    &mut |graph, node, operands| cpu::run(graph, node, operands, weights),
                ),
            };
            ran.map_err(|error| error.to_string())
        });
        std::mem::swap(arena, &mut memory.arena);
        ran
    }
}

impl Probe for Simulated {
    fn read(&mut self, store: Store, offset: usize, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(host_bytes(&mut self.resident, store, offset, into.len())?);
        Ok(())
    }

    fn write(&mut self, store: Store, offset: usize, from: &[u8]) -> Result<(), String> {
        host_bytes(&mut self.resident, store, offset, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn rerun(&mut self, step: usize, io: &mut HostIo, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        std::mem::swap(&mut self.memory[step][0].io, io);
        let ran = self.pieces((step, 0), None, tampers);
        std::mem::swap(&mut self.memory[step][0].io, io);
        ran
    }

    fn run_tampered(&mut self, step: usize, slot: usize, tampers: &mut [Tamper<'_>]) -> Result<(), String> {
        self.simulation.rows.record(&self.steps[step], &self.memory[step][slot]);
        self.pieces((step, slot), self.simulation.order, tampers)
    }
}

impl Device for Simulated {
    fn probe(&mut self) -> Option<&mut dyn Probe> {
        Some(self)
    }

    fn steps(&self) -> Arc<[Prepared]> {
        Arc::clone(&self.steps)
    }

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        &mut self.memory[step][slot]
    }

    fn launch(&mut self, step: usize, slot: usize, _: &Wanted) -> Result<(), String> {
        self.simulation.rows.record(&self.steps[step], &self.memory[step][slot]);
        let words = |error: ExecError| error.to_string();
        let truth = self.simulation.judged.then(|| self.truth(step, slot)).transpose().map_err(words)?;
        self.simulate(step, slot).map_err(words)?;
        self.read_live(step, slot);
        if let Some(truth) = truth {
            self.judge(step, slot, &truth);
        }
        Ok(())
    }

    /// The step ran when it was launched.
    fn wait(&mut self, _: usize, _: usize) -> Result<(), String> {
        Ok(())
    }
}
