//! The step graph: built through lanes, planned, proved, and only then run.

mod append;
mod builder;
mod graph;
mod lane;
mod memory;
mod plan;

pub use append::{
    Compact, CompressWeights, HyperWeights, IndexHeads, Mixed, NormWeights, RouteBy, Routed, SampleParams,
};
pub use builder::{
    BuildError, Handle, Numerics, Output, Pool, PoolSpec, Root, Rows, Settled, State, StateSpec, T, Tail,
    Weight, build,
};
pub use graph::{
    Buffer, Class, Edge, EdgeKind, Graph, Lane as LaneInfo, LaneId, Node, NodeId, PoolId, StateId, WeightId,
};
pub use lane::{Fork, Lane, Receiver, Sender};
pub use memory::{Bytes, Memory, OperandError, Operands, Resident};
pub use plan::{ALIGN, Plan};
