//! The step graph: nodes, buffers, lanes and edges. Data only; `builder` makes it, `plan` places it, `proof` judges it,
//! executors run it.

use crate::ops::{BufferId, Dtype, Op, Value};

/// Identity of a weight across steps, given by whoever registers weights (`model::Registry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Identity of a paged pool across steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

/// Identity of a per-request state buffer across steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// Who owns a buffer, and for how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Frozen after load.
    Weight(WeightId),
    /// Paged rows of all requests; outlives the step.
    Pool(PoolId),
    /// A slot per request; outlives the step.
    State(StateId),
    /// The host writes it before the step.
    Input,
    /// The host reads it after the step.
    Output,
    /// Lives within the step, in bytes that the planner may share.
    Transient,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    pub name: String,
    pub class: Class,
    pub dtype: Dtype,
    /// Elements by dimension, for errors and pictures; pools, states and weights give their bytes.
    pub shape: Vec<usize>,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// A sequence of nodes in program order; a branch of a fork has a parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// `main`, or the path of branch names below it: `main/index/query`.
    pub name: String,
    pub parent: Option<LaneId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeKind {
    /// The successor begins after the predecessor has completed.
    Full,
    /// Programmatic dependent launch: the successor begins once the predecessor has triggered, and is ordered after its
    /// completion only from its own wait on, if it waits on every path.
    Programmatic,
}

/// `from` was appended before `to`, so a graph has no cycle and append order is a legal serial schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    pub from: NodeId,
    pub to: NodeId,
    pub kind: EdgeKind,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Op,
    pub lane: LaneId,
    /// The layer (or `top`) that appended it, for words and pictures.
    pub scope: String,
    /// Executes its wait on every path. Ordinary launches do; a mutant may not.
    pub waits: bool,
}

/// One step of one bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub buffers: Vec<Buffer>,
    pub nodes: Vec<Node>,
    pub lanes: Vec<Lane>,
    /// Sorted, each pair once.
    pub edges: Vec<Edge>,
}

impl Graph {
    #[must_use]
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// The weight behind a value, `None` if its buffer is no weight.
    #[must_use]
    pub fn weight(&self, value: &Value) -> Option<WeightId> {
        match self.buffer(value.buffer).class {
            Class::Weight(id) => Some(id),
            _ => None,
        }
    }

    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// `op@lane#index`, as hazards name a node.
    #[must_use]
    pub fn label(&self, id: NodeId) -> String {
        let node = self.node(id);
        format!("{}@{}#{}", node.op.name(), self.lanes[node.lane.0 as usize].name, id.0)
    }

    /// Ids of all nodes in append order.
    pub fn node_ids(&self) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        (0..count).map(NodeId)
    }

    /// Ids of all buffers.
    pub fn buffer_ids(&self) -> impl ExactSizeIterator<Item = BufferId> + use<> {
        let count = u32::try_from(self.buffers.len()).unwrap_or(u32::MAX);
        (0..count).map(BufferId)
    }
}
