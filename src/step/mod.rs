//! The step graph: built through lanes, planned, proved, and only then run.

mod append;
mod bits;
mod builder;
mod draw;
mod graph;
mod handles;
mod hazard;
mod host_io;
mod lane;
mod layout;
mod loop_proof;
mod memory;
mod mutants;
mod plan;
mod program;
mod proof;
mod purity;
mod random;
pub mod rejected;
mod schedule;

pub use append::{
    Compact, CompressWeights, HyperWeights, IndexHeads, Mixed, NormWeights, RouteBy, Routed, SampleParams,
};
pub use builder::{BuildError, Numerics, Root, build};
pub use draw::{dot, svg};
pub use graph::{
    Buffer, Class, Edge, EdgeKind, Graph, Lane as LaneInfo, LaneId, Node, NodeId, PoolId, StateId, WeightId,
};
pub use handles::{
    Carried, Carry, CarryTail, Handle, Output, Pool, PoolSpec, Rows, Settled, State, StateSpec, T, Tail,
    Weight,
};
pub use hazard::{Hazard, Party, Rule};
pub use host_io::{HostIo, Place as HostPlace};
pub use lane::{Fork, Lane, Receiver, Sender};
pub use layout::{AnyOwner, Layout, LayoutError, Owners};
pub use loop_proof::{Drive, Replay, prove_loop, unroll};
pub use memory::{Bytes, Memory, OperandError, Operands, Resident};
pub use mutants::{Check, Mutant, Mutated, UnknownMutant};
pub use plan::{ALIGN, Plan, largest_clique};
pub use program::{Actor, Kind, Object, ObjectId, Program, SETTLED_ROWS, Space, TAIL_ROWS, Use};
pub use proof::{Proved, prove};
pub use purity::{Impure, fingerprint, purity};
pub use random::Random;
pub use schedule::{critical_path, largest_peak, programmatic, random_order, serial, width};

/// Keeps the example of the document compiling and true.
#[cfg(doctest)]
#[doc = include_str!("../../docs/proof.md")]
mod document {}
