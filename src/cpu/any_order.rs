//! The race simulator: runs a step in a seeded order that its edges allow, over the bytes that its plan gives it.
//!
//! Each node is cut into phases, as a kernel takes time: it begins and may be followed by those that were launched
//! programmatically; it waits and reads the first half of each operand; it reads the rest, computes, and writes the first half
//! of each result; it writes the rest and is complete. Rows of pools and states are operands and results like any other.
//! Between any two phases others may run theirs, so that nodes overlap in time and not only in order. A step that was proved
//! gives the same bytes in every order; one that was not shows it from a seed.
//!
//! What computes is the caller's.

mod rows;

use std::ops::Range;

use super::{ExecError, Weights};
use crate::ops::{BufferId, Dtype, Mode, Part, UnknownContents, Value};
use crate::step::{Class, EdgeKind, Graph, Memory, Node, OperandError, Operands, Plan, Random, Resident};
use rows::{Row, Used};

/// Runs one step of the model in the order that `seed` draws, dead transients poisoned; another seed for each step.
///
/// # Errors
/// The first node's [`ExecError`].
pub fn run_step(
    graph: &Graph,
    plan: &Plan,
    memory: &mut Memory,
    resident: &mut Resident,
    weights: &Weights,
    (order, seed): (Order, u64),
) -> Result<(), ExecError> {
    let mut simulator = AnyOrder::new(graph, plan, order, seed).with_poison();
    simulator.step(memory, resident, &mut |graph, node, operands| super::run(graph, node, operands, weights))
}

/// Which node's next phase comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Append order, one node after another.
    Serial,
    /// Any phase that can come next, lanes and some nodes being slower than others.
    Any,
    /// As `Any`, with one node in eight held back until nothing else can run.
    Worst,
}

/// Runs one step after another, each in an order of its own.
#[derive(Debug)]
pub struct AnyOrder<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    order: Order,
    random: Random,
    poison: bool,
    nodes: Vec<Links>,
    /// Operands of the node that computes, at their planned places.
    scratch: Memory,
    /// Rows of pools and states of the node that computes, at theirs.
    own: Resident,
}

/// A node's edges and its accesses to step memory.
#[derive(Debug, Default)]
struct Links {
    full: Vec<usize>,
    programmatic: Vec<usize>,
    next: Vec<usize>,
    reads: Vec<Span>,
    writes: Vec<Span>,
    /// Transients, each once.
    uses: Vec<BufferId>,
    /// It uses a pool or state.
    rows: bool,
}

/// Bytes of a buffer of the step.
#[derive(Clone, Debug)]
struct Span {
    buffer: BufferId,
    range: Range<usize>,
}

/// How far a node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Idle,
    Begun,
    ReadHalf,
    WrittenHalf,
    Complete,
}

/// A step under way.
struct Run {
    phases: Vec<Phase>,
    /// Bytes read so far, or results on their way, by access.
    held: Vec<Vec<Vec<u8>>>,
    /// The same of pools and states.
    rows: Vec<Vec<Row>>,
    ready: Vec<usize>,
    weights: Vec<u32>,
    /// Nodes that have yet to finish with each transient.
    left: Vec<usize>,
}

impl<'a> AnyOrder<'a> {
    #[must_use]
    pub fn new(graph: &'a Graph, plan: &'a Plan, order: Order, seed: u64) -> Self {
        let mut nodes: Vec<Links> = graph.nodes.iter().map(|node| links(graph, node)).collect();
        for edge in &graph.edges {
            let (from, to) = (edge.from.0 as usize, edge.to.0 as usize);
            nodes[from].next.push(to);
            match edge.kind {
                EdgeKind::Full => nodes[to].full.push(from),
                EdgeKind::Programmatic => nodes[to].programmatic.push(from),
            }
        }
        let scratch = Memory::new(graph, plan);
        let (random, own) = (Random::new(seed), Resident::default());
        Self { graph, plan, order, random, poison: false, nodes, scratch, own }
    }

    /// Fills the bytes of every transient with 0xff once its last user is done: NaN in every float format, -1 as an index.
    #[must_use]
    pub fn with_poison(mut self) -> Self {
        self.poison = true;
        self
    }

    /// Values that are read after the step stay as they are.
    #[must_use]
    pub fn keeping(mut self, live: &[BufferId]) -> Self {
        self.nodes.iter_mut().for_each(|node| node.uses.retain(|buffer| !live.contains(buffer)));
        self
    }

    /// Runs one step; `execute` computes a node.
    ///
    /// # Errors
    /// What `execute` returns, or that operands of one node overlap.
    pub fn step<E: From<OperandError>>(
        &mut self,
        memory: &mut Memory,
        resident: &mut Resident,
        execute: &mut dyn FnMut(&Graph, &Node, Operands<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.begin_step(usize::MAX, memory, resident, execute)
    }

    /// Runs the first `phases` phases of a step and leaves it there; a whole step has [`AnyOrder::phases`].
    ///
    /// # Errors
    /// As [`AnyOrder::step`].
    pub fn begin_step<E: From<OperandError>>(
        &mut self,
        phases: usize,
        memory: &mut Memory,
        resident: &mut Resident,
        execute: &mut dyn FnMut(&Graph, &Node, Operands<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.own.pools.len() != resident.pools.len() || self.own.states.len() != resident.states.len() {
            self.own = rows::apart(resident);
        }
        let mut run = self.start();
        for _ in 0..phases {
            let Some(node) = self.pick(&run) else { return Ok(()) };
            match run.phases[node] {
                Phase::Idle => run.phases[node] = Phase::Begun,
                Phase::Begun => self.read_half(&mut run, node, memory, resident)?,
                Phase::ReadHalf => self.compute(&mut run, node, memory, resident, execute)?,
                Phase::WrittenHalf | Phase::Complete => self.complete(&mut run, node, memory, resident),
            }
            self.refresh(&mut run, node);
        }
        Ok(())
    }

    /// Phases of a whole step.
    #[must_use]
    pub const fn phases(graph: &Graph) -> usize {
        4 * graph.nodes.len()
    }

    fn start(&mut self) -> Run {
        let count = self.nodes.len();
        let mut left = vec![0; self.graph.buffers.len()];
        for buffer in self.nodes.iter().flat_map(|n| &n.uses) {
            left[buffer.0 as usize] += 1;
        }
        let weights = self.weights();
        let ready =
            (0..count).filter(|&n| self.nodes[n].full.is_empty() && self.nodes[n].programmatic.is_empty());
        let ready = ready.collect();
        let (phases, held, rows) =
            (vec![Phase::Idle; count], vec![Vec::new(); count], vec![Vec::new(); count]);
        Run { phases, held, rows, ready, weights, left }
    }

    /// How eager each node is in this step: lanes run at four speeds, and one node in eight is slow or held back.
    fn weights(&mut self) -> Vec<u32> {
        let lanes: Vec<u32> = self.graph.lanes.iter().map(|_| 64 >> (2 * self.random.below(4))).collect();
        let mut weights = Vec::with_capacity(self.graph.nodes.len());
        for node in &self.graph.nodes {
            let slow = self.random.below(8) == 0;
            let lane = lanes.get(node.lane.0 as usize).copied().unwrap_or(1);
            weights.push(match (self.order, slow) {
                (Order::Worst, true) => 0,
                (_, true) => 1,
                (_, false) => lane,
            });
        }
        weights
    }

    fn pick(&mut self, run: &Run) -> Option<usize> {
        if self.order == Order::Serial {
            return run.ready.iter().copied().min();
        }
        let total: u32 = run.ready.iter().map(|&n| run.weights[n]).sum();
        if total == 0 {
            return run.ready.get(self.random.below(run.ready.len())).copied();
        }
        let mut at = u32::try_from(self.random.below(total as usize)).unwrap_or(0);
        run.ready.iter().copied().find(|&n| {
            let found = at < run.weights[n];
            at = at.saturating_sub(run.weights[n]);
            found
        })
    }

    /// Whether the node's next phase may come now.
    fn can_go_on(&self, run: &Run, node: usize) -> bool {
        let links = &self.nodes[node];
        let done = |all: &[usize]| all.iter().all(|&n| run.phases[n] == Phase::Complete);
        match run.phases[node] {
            Phase::Idle => {
                done(&links.full) && links.programmatic.iter().all(|&n| run.phases[n] >= Phase::Begun)
            }
            Phase::Begun => !self.graph.nodes[node].waits || done(&links.programmatic),
            Phase::ReadHalf | Phase::WrittenHalf => true,
            Phase::Complete => false,
        }
    }

    /// Brings the set of nodes that can go on up to date after a phase of `node`.
    fn refresh(&self, run: &mut Run, node: usize) {
        run.ready.retain(|&n| n != node);
        for &n in std::iter::once(&node).chain(&self.nodes[node].next) {
            if !run.ready.contains(&n) && self.can_go_on(run, n) {
                run.ready.push(n);
            }
        }
    }

    fn read_half<E: From<OperandError>>(
        &self,
        run: &mut Run,
        node: usize,
        memory: &mut Memory,
        resident: &mut Resident,
    ) -> Result<(), E> {
        let mut used = self.used(node, memory)?;
        rows::first_halves(&mut used.reads);
        rows::take(&mut used.reads, resident);
        run.rows[node] = used.reads;
        let reads = &self.nodes[node].reads;
        run.held[node] = reads.iter().map(|s| self.bytes(memory, s)[..s.range.len() / 2].to_vec()).collect();
        run.phases[node] = Phase::ReadHalf;
        Ok(())
    }

    /// The rows that the node's operands in `memory` name.
    fn used(&self, node: usize, memory: &Memory) -> Result<Used, OperandError> {
        if !self.nodes[node].rows {
            return Ok(Used { reads: Vec::new(), writes: Vec::new() });
        }
        let undeclared = |e: UnknownContents| OperandError::Undeclared { op: e.op, buffer: e.buffer.0 };
        Used::by(&self.graph.nodes[node].op, self.graph, self.plan, memory).map_err(undeclared)
    }

    fn compute<E: From<OperandError>>(
        &mut self,
        run: &mut Run,
        node: usize,
        memory: &mut Memory,
        resident: &mut Resident,
        execute: &mut dyn FnMut(&Graph, &Node, Operands<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut scratch, mut own) = (std::mem::take(&mut self.scratch), std::mem::take(&mut self.own));
        self.fill(&mut scratch, node, &run.held[node], memory);
        let result = self.over_copies(run, node, (&mut scratch, &mut own), resident, execute);
        let writes = &self.nodes[node].writes;
        run.held[node] = writes.iter().map(|s| self.bytes(&mut scratch, s).to_vec()).collect();
        for (span, result) in writes.iter().zip(&run.held[node]) {
            let half = result.len() / 2;
            self.bytes(memory, span)[..half].copy_from_slice(&result[..half]);
        }
        (self.scratch, self.own) = (scratch, own);
        run.phases[node] = Phase::WrittenHalf;
        result
    }

    /// Computes the node over copies of its operands, of which its rows are still to be brought, and lets the first half of
    /// the rows that it writes go out.
    fn over_copies<E: From<OperandError>>(
        &self,
        run: &mut Run,
        node: usize,
        (scratch, own): (&mut Memory, &mut Resident),
        resident: &mut Resident,
        execute: &mut dyn FnMut(&Graph, &Node, Operands<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut used = self.used(node, scratch)?;
        rows::take(&mut used.reads, resident);
        rows::put(&used.reads, own);
        rows::put(&run.rows[node], own);
        let of = &self.graph.nodes[node];
        let operands = Operands::new(self.graph, self.plan, of, scratch, own)?;
        execute(self.graph, of, operands)?;
        rows::take(&mut used.writes, own);
        rows::put_half(&used.writes, true, resident);
        run.rows[node] = used.writes;
        Ok(())
    }

    /// Brings the operands to the scratch memory: of each read the half that is held and the rest as it is now.
    fn fill(&self, scratch: &mut Memory, node: usize, held: &[Vec<u8>], memory: &mut Memory) {
        let links = &self.nodes[node];
        for (span, half) in links.reads.iter().zip(held) {
            let to = self.bytes(scratch, span);
            to[..half.len()].copy_from_slice(half);
            to[half.len()..].copy_from_slice(&self.bytes(memory, span)[half.len()..]);
        }
        // What an operation leaves as it is stays as it is.
        for span in &links.writes {
            self.bytes(scratch, span).copy_from_slice(self.bytes(memory, span));
        }
    }

    fn complete(&self, run: &mut Run, node: usize, memory: &mut Memory, resident: &mut Resident) {
        rows::put_half(&std::mem::take(&mut run.rows[node]), false, resident);
        let links = &self.nodes[node];
        for (span, result) in links.writes.iter().zip(std::mem::take(&mut run.held[node])) {
            let half = result.len() / 2;
            self.bytes(memory, span)[half..].copy_from_slice(&result[half..]);
        }
        for &buffer in &links.uses {
            let left = &mut run.left[buffer.0 as usize];
            *left -= 1;
            if *left == 0 && self.poison {
                self.bytes(memory, &whole(self.graph, buffer)).fill(0xff);
            }
        }
        run.phases[node] = Phase::Complete;
    }

    /// Bytes of the step's memory: planned, or an input or output of its own.
    fn bytes<'m>(&self, memory: &'m mut Memory, span: &Span) -> &'m mut [u8] {
        match self.plan.offsets[span.buffer.0 as usize] {
            Some(at) => &mut memory.arena[at + span.range.start..at + span.range.end],
            None => {
                let value = Value { buffer: span.buffer, dtype: Dtype::U8, len: span.range.end };
                &mut memory.host_mut::<u8>(&value)[span.range.clone()]
            }
        }
    }
}

fn whole(graph: &Graph, buffer: BufferId) -> Span {
    Span { buffer, range: 0..graph.buffer(buffer).bytes }
}

fn links(graph: &Graph, node: &Node) -> Links {
    let mut links = Links::default();
    for access in node.op.regions() {
        let buffer = access.region.buffer;
        let class = graph.buffer(buffer).class;
        links.rows |= matches!(class, Class::Pool(_) | Class::State(_));
        let Part::Bytes(range) = access.region.part else { continue };
        if !matches!(class, Class::Input | Class::Output | Class::Transient) {
            continue;
        }
        if class == Class::Transient && !links.uses.contains(&buffer) {
            links.uses.push(buffer);
        }
        let spans = if access.mode == Mode::Read { &mut links.reads } else { &mut links.writes };
        spans.push(Span { buffer, range });
    }
    links
}
