//! What instruments need of a device: its memory by region between steps, and a step run a second time.
//!
//! Nothing here is part of a step: a graph, its plan and its arguments are the same whether or not anything looks.

use std::ops::Range;

use super::hash::hash;
use crate::ops::Value;
use crate::step::{Graph, HostIo, Memory, NodeId, PoolId, StateId};

/// Memory that outlives steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Store {
    Pool(PoolId),
    State(StateId),
}

/// Bytes to hash: `range` of a store, whose first word is word `first` of its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub store: Store,
    pub range: Range<usize>,
    pub first: u32,
}

/// Edits the bytes of a value.
pub type Edit<'a> = Box<dyn FnMut(&mut [u8]) + 'a>;

/// A value that is changed in the middle of a step, once the node that writes it has run.
pub struct Tamper<'a> {
    pub after: NodeId,
    pub value: Value,
    pub edit: Edit<'a>,
}

impl std::fmt::Debug for Tamper<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tamper")
            .field("after", &self.after)
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}

/// A device while no step is under way. Offsets are bytes from the start of a store.
pub trait Probe {
    /// # Errors
    /// A sentence: no such store, or bytes outside it.
    fn read(&mut self, store: Store, offset: usize, into: &mut [u8]) -> Result<(), String>;

    /// # Errors
    /// As [`read`](Self::read).
    fn write(&mut self, store: Store, offset: usize, from: &[u8]) -> Result<(), String>;

    /// Copies within a store.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn copy(&mut self, store: Store, from: Range<usize>, to: usize) -> Result<(), String> {
        let mut bytes = vec![0; from.len()];
        self.read(store, from.start, &mut bytes)?;
        self.write(store, to, &bytes)
    }

    /// The [`hash`] of each span.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn hashes(&mut self, spans: &[Span]) -> Result<Vec<u64>, String> {
        let mut bytes = Vec::new();
        let one = |span: &Span| {
            bytes.resize(span.range.len(), 0);
            self.read(span.store, span.range.start, &mut bytes)?;
            Ok(hash(&bytes, span.first))
        };
        spans.iter().map(one).collect()
    }

    /// Runs a step again, one node after another, on inputs and outputs of the caller's: the same graph, the same plan,
    /// the same pools. `tampers` are in the order of their nodes.
    ///
    /// # Errors
    /// A sentence; the device is then unusable.
    fn rerun(&mut self, step: usize, io: &mut HostIo, tampers: &mut [Tamper<'_>]) -> Result<(), String>;

    /// Runs a step as the device runs it, on the inputs and outputs of a slot, with values changed on the way.
    ///
    /// # Errors
    /// A sentence: also if nothing can be changed inside a step that runs as this device runs it.
    fn run_tampered(&mut self, step: usize, slot: usize, tampers: &mut [Tamper<'_>]) -> Result<(), String>;
}

/// Cuts a graph after each tampered node and runs the pieces with `run`, with `edit` at each cut.
///
/// # Errors
/// The first error of either.
pub fn run_in_pieces(
    graph: &Graph,
    tampers: &mut [Tamper<'_>],
    mut run: impl FnMut(Piece<'_, '_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut begin = 0;
    for tamper in tampers {
        let end = tamper.after.0 as usize + 1;
        if end > begin {
            run(Piece::Run(&piece(graph, begin..end)))?;
            begin = end;
        }
        run(Piece::Edit(tamper.value, &mut tamper.edit))?;
    }
    if begin < graph.nodes.len() { run(Piece::Run(&piece(graph, begin..graph.nodes.len()))) } else { Ok(()) }
}

/// What [`run_in_pieces`] wants done next.
pub enum Piece<'a, 'e> {
    /// These nodes run.
    Run(&'a Graph),
    /// The bytes of this value are edited.
    Edit(Value, &'a mut (dyn FnMut(&mut [u8]) + 'e)),
}

impl std::fmt::Debug for Piece<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(graph) => write!(f, "Run({} nodes)", graph.nodes.len()),
            Self::Edit(value, _) => write!(f, "Edit({value:?})"),
        }
    }
}

/// Some of a graph's nodes in a row, with the edges among them.
fn piece(graph: &Graph, nodes: Range<usize>) -> Graph {
    let first = u32::try_from(nodes.start).unwrap_or(u32::MAX);
    let inside = |id: NodeId| nodes.contains(&(id.0 as usize));
    let edges = graph.edges.iter().copied().filter(|e| inside(e.from) && inside(e.to));
    let moved = edges.map(|mut e| {
        (e.from.0, e.to.0) = (e.from.0 - first, e.to.0 - first);
        e
    });
    Graph {
        buffers: graph.buffers.clone(),
        nodes: graph.nodes[nodes.clone()].to_vec(),
        lanes: graph.lanes.clone(),
        edges: moved.collect(),
    }
}

/// The bytes of a value in a host's step memory.
pub(crate) fn edit_host(
    plan: &crate::step::Plan,
    memory: &mut Memory,
    value: Value,
    edit: &mut dyn FnMut(&mut [u8]),
) {
    match plan.offsets.get(value.buffer.0 as usize).copied().flatten() {
        Some(at) => edit(&mut memory.arena[at..at + value.bytes()]),
        None => edit(&mut memory.host_bytes_mut(value.buffer)[..value.bytes()]),
    }
}

/// Bytes of one store, checked.
pub(crate) fn within(store: Store, bytes: usize, offset: usize, len: usize) -> Result<Range<usize>, String> {
    match offset.checked_add(len) {
        Some(end) if end <= bytes => Ok(offset..end),
        _ => Err(format!("{store:?}: bytes {offset}..+{len} are outside its {bytes}")),
    }
}
