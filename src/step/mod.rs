//! The step graph: built through lanes, planned, proved, and only then run.

mod bits;
mod graph;
mod hazard;
mod memory;
mod plan;
mod program;
mod proof;
mod random;
mod schedule;

pub use graph::{
    Buffer, Class, Edge, EdgeKind, Graph, Lane as LaneInfo, LaneId, Node, NodeId, PoolId, StateId, WeightId,
};
pub use hazard::{Hazard, Party, Rule};
pub use memory::{Bytes, Memory, OperandError, Operands, Resident};
pub use plan::{ALIGN, Plan, largest_clique};
pub use program::{Actor, Kind, Object, ObjectId, Program, SETTLED_ROWS, Space, TAIL_ROWS, Use};
pub use proof::{Proved, prove};
pub use random::Random;
pub use schedule::{critical_path, largest_peak, random_order, width};
