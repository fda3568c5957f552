//! The step graph: built through lanes, planned, proved, and only then run.

mod graph;
mod memory;
mod plan;

pub use graph::{
    Buffer, Class, Edge, EdgeKind, Graph, Lane as LaneInfo, LaneId, Node, NodeId, PoolId, StateId, WeightId,
};
pub use memory::{Bytes, Memory, OperandError, Operands, Resident};
pub use plan::{ALIGN, Plan};
