//! The step graph: built through lanes, planned, proved, and only then run.

mod append;
mod bits;
mod builder;
mod graph;
mod hazard;
mod lane;
mod memory;
mod plan;
mod program;
mod proof;
mod random;
mod schedule;

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
pub use hazard::{Hazard, Party, Rule};
pub use lane::{Fork, Lane, Receiver, Sender};
pub use memory::{Bytes, Memory, OperandError, Operands, Resident};
pub use plan::{ALIGN, Plan, largest_clique};
pub use program::{Actor, Kind, Object, ObjectId, Program, SETTLED_ROWS, Space, TAIL_ROWS, Use};
pub use proof::{Proved, prove};
pub use random::Random;
pub use schedule::{critical_path, largest_peak, random_order, width};
