//! What the proof sees of a step: nodes with the bytes that they use, and edges. Neutral, so that a planned [`Graph`], a
//! captured graph that was read back, the engine's loop and a test can each be stated in it.
//!
//! It knows nothing of operations or of planning, and nothing here judges.

use std::fmt;
use std::ops::Range;

use super::graph::{Class, Edge, EdgeKind, Graph, NodeId, PoolId, StateId, WeightId};
use super::plan::Plan;
use crate::ops::{Access, Mode, Part};

/// Memory in which offsets can overlap. Offsets of different spaces never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Planned bytes, by arena.
    Arena(u32),
    Weight(WeightId),
    /// Rows, not bytes: [`SETTLED_ROWS`] and [`TAIL_ROWS`] stand for the two parts of one step.
    Pool(PoolId),
    /// As a pool's.
    State(StateId),
    /// Memory of its own: an input or output, numbered by whoever states the program.
    Host(u32),
}

impl Space {
    /// Its offsets stand for rows and mean nothing as bytes.
    #[must_use]
    pub const fn symbolic(self) -> bool {
        matches!(self, Self::Pool(_) | Self::State(_))
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arena(0) => write!(f, "arena"),
            Self::Arena(id) => write!(f, "arena {id}"),
            Self::Weight(id) => write!(f, "weight {}", id.0),
            Self::Pool(id) => write!(f, "pool {}", id.0),
            Self::State(id) => write!(f, "state {}", id.0),
            Self::Host(id) => write!(f, "host buffer {id}"),
        }
    }
}

/// The settled part of a pool or state, as a range of its space.
pub const SETTLED_ROWS: Range<usize> = 0..1;
/// The tail part; disjoint from the settled one because sealing a step's inputs checks that.
pub const TAIL_ROWS: Range<usize> = 1..2;

/// When an object holds what its readers want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// From before the program to its end; nothing may write it.
    Frozen,
    /// From before the program until it is written, and again after.
    Given,
    /// Once a node has written it.
    Made,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

/// A named value in memory. Two objects may lie in the same bytes: that is what has to be proved harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub name: String,
    pub space: Space,
    pub kind: Kind,
}

/// One access of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub object: ObjectId,
    /// In the object's space.
    pub range: Range<usize>,
    pub mode: Mode,
    /// From the node's begin on, before its wait; else from its wait on. Either lasts to its completion.
    pub early: bool,
}

/// A kernel, a copy, or an agent outside the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub label: String,
    pub lane: String,
    /// Waits for its programmatic predecessors on every path.
    pub waits: bool,
    pub uses: Vec<Use>,
}

/// Nodes, their accesses and their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    pub objects: Vec<Object>,
    pub nodes: Vec<Actor>,
    pub edges: Vec<Edge>,
}

impl Program {
    /// One step with its buffers where `plan` puts them. Reads of weights are early.
    #[must_use]
    pub fn of(graph: &Graph, plan: &Plan) -> Self {
        let mut program = Self::default();
        let objects: Vec<ObjectId> = graph.buffer_ids().map(|id| program.buffer(graph, plan, id.0)).collect();
        for id in graph.node_ids() {
            let node = graph.node(id);
            let mut uses = Vec::new();
            for access in node.op.regions() {
                let at = access.region.buffer.0 as usize;
                let base = plan.offsets.get(at).copied().flatten().unwrap_or(0);
                uses_of(graph.buffers[at].class, objects[at], base, &access, &mut uses);
            }
            let lane = graph.lanes[node.lane.0 as usize].name.clone();
            program.nodes.push(Actor { label: graph.label(id), lane, waits: node.waits, uses });
        }
        program.edges.clone_from(&graph.edges);
        program
    }

    /// States that settled rows may be read before the wait, which the loop proof has to justify.
    #[must_use]
    pub fn with_early_settled(mut self) -> Self {
        let objects = &self.objects;
        for one in self.nodes.iter_mut().flat_map(|n| &mut n.uses) {
            let object = &objects[one.object.0 as usize];
            let rows = object.space.symbolic() && object.kind == Kind::Frozen;
            one.early |= rows && one.mode == Mode::Read;
        }
        self
    }

    /// Adds an object.
    pub fn object(&mut self, name: impl Into<String>, space: Space, kind: Kind) -> ObjectId {
        self.objects.push(Object { name: name.into(), space, kind });
        ObjectId(to_u32(self.objects.len() - 1))
    }

    /// Adds a node.
    pub fn node(&mut self, label: impl Into<String>, lane: impl Into<String>, uses: Vec<Use>) -> NodeId {
        self.nodes.push(Actor { label: label.into(), lane: lane.into(), waits: true, uses });
        NodeId(to_u32(self.nodes.len() - 1))
    }

    /// Adds a full edge.
    pub fn order(&mut self, from: NodeId, to: NodeId) {
        self.edges.push(Edge { from, to, kind: EdgeKind::Full });
    }

    /// The first object of a buffer; a pool or state has its tail right after its settled part.
    fn buffer(&mut self, graph: &Graph, plan: &Plan, id: u32) -> ObjectId {
        let buffer = &graph.buffers[id as usize];
        let name = &buffer.name;
        let planned = plan.offsets.get(id as usize).copied().flatten().is_some();
        let own = if planned { Space::Arena(0) } else { Space::Host(id) };
        match buffer.class {
            Class::Weight(weight) => self.object(name, Space::Weight(weight), Kind::Frozen),
            Class::Pool(pool) => self.parts(name, Space::Pool(pool)),
            Class::State(state) => self.parts(name, Space::State(state)),
            Class::Input => self.object(name, own, Kind::Frozen),
            Class::Output | Class::Transient => self.object(name, own, Kind::Made),
        }
    }

    fn parts(&mut self, name: &str, space: Space) -> ObjectId {
        let settled = self.object(format!("{name} (settled)"), space, Kind::Frozen);
        self.object(format!("{name} (tail)"), space, Kind::Made);
        settled
    }
}

/// An access as uses. Plain bytes of a pool or state may be rows of either part.
fn uses_of(class: Class, object: ObjectId, base: usize, access: &Access, uses: &mut Vec<Use>) {
    let mode = access.mode;
    let tail = ObjectId(object.0 + 1);
    let symbolic = matches!(class, Class::Pool(_) | Class::State(_));
    let mut push = |object, range, early| uses.push(Use { object, range, mode, early });
    match &access.region.part {
        Part::Bytes(range) if !symbolic => {
            let early = matches!(class, Class::Weight(_)) && mode == Mode::Read;
            push(object, base + range.start..base + range.end, early);
        }
        Part::Settled => push(object, SETTLED_ROWS, false),
        Part::Tail => push(if symbolic { tail } else { object }, TAIL_ROWS, false),
        Part::Bytes(_) => {
            push(object, SETTLED_ROWS, false);
            push(tail, TAIL_ROWS, false);
        }
    }
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
