//! Rows of pools and states as a node of the simulator uses them: which ones its inputs decide, so they are found from what
//! the node has read. The node computes over a copy that holds these rows and no others.

use std::ops::Range;

use crate::ops::{BufferId, Contents, Mode, Op, UnknownContents, Value};
use crate::step::{Bytes, Class, Graph, Memory, Plan, Resident};

/// Bytes of a pool or state.
#[derive(Clone, Debug)]
pub(super) struct Row {
    place: Place,
    range: Range<usize>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Pool(usize),
    State(usize),
}

impl Place {
    fn of(graph: &Graph, buffer: BufferId) -> Option<Self> {
        match graph.buffer(buffer).class {
            Class::Pool(id) => Some(Self::Pool(id.0 as usize)),
            Class::State(id) => Some(Self::State(id.0 as usize)),
            _ => None,
        }
    }

    fn bytes(self, resident: &mut Resident) -> &mut [u8] {
        match self {
            Self::Pool(id) => &mut resident.pools[id],
            Self::State(id) => &mut resident.states[id],
        }
    }
}

/// The rows that a node reads and those that it writes.
pub(super) struct Used {
    pub(super) reads: Vec<Row>,
    pub(super) writes: Vec<Row>,
}

impl Used {
    /// As the operands in `memory` decide.
    pub(super) fn by(op: &Op, graph: &Graph, plan: &Plan, memory: &Memory) -> Result<Self, UnknownContents> {
        let mut used = Self { reads: Vec::new(), writes: Vec::new() };
        for touched in op.touched(&Known { plan, memory })? {
            let Some(place) = Place::of(graph, touched.buffer) else { continue };
            let rows = if touched.mode == Mode::Read { &mut used.reads } else { &mut used.writes };
            rows.extend(touched.ranges.into_iter().map(|range| Row { place, range, bytes: Vec::new() }));
        }
        Ok(used)
    }
}

/// The first half of each row.
pub(super) fn first_halves(rows: &mut [Row]) {
    for row in rows {
        row.range.end = row.range.start + row.range.len() / 2;
    }
}

/// Takes the bytes that the rows have now.
pub(super) fn take(rows: &mut [Row], resident: &mut Resident) {
    for row in rows {
        row.bytes = row.place.bytes(resident)[row.range.clone()].to_vec();
    }
}

/// Puts the bytes that were taken.
pub(super) fn put(rows: &[Row], resident: &mut Resident) {
    for row in rows {
        row.place.bytes(resident)[row.range.clone()].copy_from_slice(&row.bytes);
    }
}

/// Puts one half of the bytes that were taken: the first, or the rest.
pub(super) fn put_half(rows: &[Row], first: bool, resident: &mut Resident) {
    for row in rows {
        let middle = row.bytes.len() / 2;
        let half = if first { 0..middle } else { middle..row.bytes.len() };
        let to = &mut row.place.bytes(resident)[row.range.clone()];
        to[half.clone()].copy_from_slice(&row.bytes[half]);
    }
}

/// Memory for a node to compute in: as large as `resident`, taken from the system where it is written.
pub(super) fn apart(resident: &Resident) -> Resident {
    let zeroed = |all: &[Bytes]| all.iter().map(|b| Bytes::zeroed(b.len())).collect();
    Resident { pools: zeroed(&resident.pools), states: zeroed(&resident.states) }
}

/// The contents of a step's own memory.
struct Known<'m> {
    plan: &'m Plan,
    memory: &'m Memory,
}

impl Contents for Known<'_> {
    fn bytes(&self, value: &Value) -> Option<&[u8]> {
        let planned = self.plan.offsets.get(value.buffer.0 as usize)?;
        Some(match planned {
            Some(at) => self.memory.arena.get(*at..at + value.bytes())?,
            None => self.memory.host_bytes(value.buffer),
        })
    }
}
