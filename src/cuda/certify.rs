//! The proof of a captured graph: what the driver says that it will run, tied to what was declared.
//!
//! A capture may turn edges into others, and host code may bake a value into an argument, so a captured graph is a
//! program of its own. It is read back twice, the second time from a capture with every buffer elsewhere: an argument word
//! that moved is a pointer, and by how much it moved names its buffer. Each pointer must lie in a region that its node
//! declares; every other word must be the same in both. Then the step's proof is repeated on the edges that were read.
//!
//! Nothing here calls the driver. What no reading shows is assumed: which regions a kernel writes, and how far.

use super::{CudaError, Launch};
use crate::ops::{BufferId, Part};
use crate::step::{Edge, EdgeKind, Graph, Hazard, NodeId, Plan, Program, Proved, prove};

/// A captured graph, as read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// In the driver's order.
    pub nodes: Vec<ReadNode>,
    /// Between places in `nodes`.
    pub edges: Vec<ReadEdge>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadNode {
    /// The node of the step that was being launched when it appeared; `None` if nothing was.
    pub of: Option<NodeId>,
    pub kind: NodeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    Kernel(KernelCall),
    /// Anything else, by the driver's name for it.
    Other(&'static str),
}

/// A kernel node's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCall {
    pub symbol: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    /// The parameter struct's bytes, in words.
    pub words: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEdge {
    pub from: usize,
    pub to: usize,
    /// `CUgraphDependencyType`.
    pub kind: u8,
    /// What of the predecessor is waited for: 0 its end, 1 its trigger.
    pub from_port: u8,
}

/// Where a buffer lies in the first capture, and how far it moved for the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub address: u64,
    pub bytes: usize,
}

/// How far a buffer is moved for the second capture: beyond every address, so that the distance names it.
#[must_use]
pub const fn displacement(buffer: BufferId) -> u64 {
    (buffer.0 as u64 + 1) << 48
}

/// Why a captured graph may not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum Uncertified {
    #[error("the captured graph holds {0}, which no node of the step declares")]
    Stray(String),
    #[error("the captured graph holds {kind} in the place of {node}")]
    NoKernel { node: String, kind: &'static str },
    #[error("{node} was captured {found} times, expected once")]
    Count { node: String, found: usize },
    #[error("{node}: {what}, as captured: {found}, expected {expected}")]
    Launch { node: String, what: &'static str, expected: String, found: String },
    #[error("{from} -> {to}: an edge of kind {kind}, port {port}, whose order is not known")]
    Edge { from: String, to: String, kind: u8, port: u8 },
    #[error(
        "{node}: argument word {word} is {first:#x} in one capture and {second:#x} in another: a host value is baked in"
    )]
    Baked { node: String, word: usize, first: u64, second: u64 },
    #[error(
        "{node}: argument word {word} points into {buffer} and did not move with it: a stale address is baked in"
    )]
    Stale { node: String, word: usize, buffer: String },
    #[error("{node}: argument word {word} points at byte {offset} of {buffer}, which it does not declare")]
    Undeclared { node: String, word: usize, buffer: String, offset: u64 },
    #[error("{node}: it declares {buffer}, and no argument points there")]
    Unused { node: String, buffer: String },
    #[error("the captured graph is not free of hazards ({} found): {}", .0.len(), .0.first().map_or_else(String::new, ToString::to_string))]
    Hazards(Vec<Hazard>),
    #[error("the graph could not be read back: {0}")]
    Driver(#[from] CudaError),
}

/// A captured graph that may be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub proved: Proved,
    /// Edges that became programmatic.
    pub programmatic: usize,
    /// Argument words that are pointers, each in a declared region.
    pub pointers: usize,
    /// Of all that a replay depends on: nodes, edges with their kinds, launches, arguments relative to their buffers, and
    /// offsets in the arena.
    pub fingerprint: u64,
}

/// What was captured and what it was captured from.
#[derive(Debug)]
pub struct Evidence<'a> {
    pub graph: &'a Graph,
    pub plan: &'a Plan,
    /// By node.
    pub launches: &'a [Launch],
    pub reading: &'a Reading,
    /// The reading of the capture with every buffer moved by its [`displacement`].
    pub displaced: &'a Reading,
    /// By buffer; a weight has a place for each of its parts.
    pub places: &'a [Vec<Place>],
}

impl Evidence<'_> {
    /// Ties the reading to the step and proves it.
    ///
    /// # Errors
    /// [`Uncertified`]: the first thing that does not fit, or every hazard.
    pub fn certify(&self) -> Result<Certificate, Uncertified> {
        let (first, second) = (self.calls(self.reading)?, self.calls(self.displaced)?);
        let mut hash = Fnv::default();
        let mut pointers = 0;
        for (at, (a, b)) in first.iter().zip(&second).enumerate() {
            pointers += self.arguments(at, a, b, &mut hash)?;
        }
        let edges = self.edges(self.reading)?;
        if edges != self.edges(self.displaced)? {
            return Err(Uncertified::Stray("other edges when it is captured again".to_owned()));
        }
        for edge in &edges {
            hash.words(&[u64::from(edge.from.0), u64::from(edge.to.0), edge.kind as u64]);
        }
        for offset in self.plan.offsets.iter().flatten() {
            hash.words(&[*offset as u64]);
        }
        let programmatic = edges.iter().filter(|e| e.kind == EdgeKind::Programmatic).count();
        let program = Program { edges, ..Program::of(self.graph, self.plan) };
        let proved = prove(&program).map_err(Uncertified::Hazards)?;
        Ok(Certificate { proved, programmatic, pointers, fingerprint: hash.0 })
    }

    fn label(&self, at: usize) -> String {
        self.graph.label(NodeId(u32::try_from(at).unwrap_or(u32::MAX)))
    }

    /// The kernel call of each node of the step, in the step's order.
    fn calls<'r>(&self, reading: &'r Reading) -> Result<Vec<&'r KernelCall>, Uncertified> {
        let mut calls: Vec<Vec<&KernelCall>> = vec![Vec::new(); self.graph.nodes.len()];
        for node in &reading.nodes {
            match (node.of, &node.kind) {
                (Some(of), NodeKind::Kernel(call)) => calls[of.0 as usize].push(call),
                (Some(of), NodeKind::Other(kind)) => {
                    return Err(Uncertified::NoKernel { node: self.graph.label(of), kind });
                }
                (None, NodeKind::Kernel(call)) => {
                    return Err(Uncertified::Stray(format!("kernel {}", call.symbol)));
                }
                (None, NodeKind::Other(kind)) => return Err(Uncertified::Stray((*kind).to_owned())),
            }
        }
        let once = |(at, found): (usize, Vec<&'r KernelCall>)| match found[..] {
            [call] => Ok(call),
            _ => Err(Uncertified::Count { node: self.label(at), found: found.len() }),
        };
        calls.into_iter().enumerate().map(once).collect()
    }

    fn edges(&self, reading: &Reading) -> Result<Vec<Edge>, Uncertified> {
        let of = |at: usize| reading.nodes.get(at).and_then(|n| n.of).unwrap_or(NodeId(u32::MAX));
        let mut edges = Vec::with_capacity(reading.edges.len());
        for &ReadEdge { from, to, kind, from_port: port } in &reading.edges {
            let (from, to) = (of(from), of(to));
            let kind = match (kind, port) {
                (0, 0) => EdgeKind::Full,
                (1, 1) => EdgeKind::Programmatic,
                _ => {
                    let [from, to] = [from, to].map(|n| self.graph.label(n));
                    return Err(Uncertified::Edge { from, to, kind, port });
                }
            };
            edges.push(Edge { from, to, kind });
        }
        edges.sort();
        Ok(edges)
    }

    /// Checks one node's launch and arguments; how many of them are pointers.
    fn arguments(
        &self,
        at: usize,
        a: &KernelCall,
        b: &KernelCall,
        hash: &mut Fnv,
    ) -> Result<usize, Uncertified> {
        self.launch(at, a, b)?;
        hash.bytes(a.symbol.as_bytes());
        hash.words(&[a.grid, a.block].concat().into_iter().map(u64::from).collect::<Vec<_>>());
        hash.words(&[u64::from(a.shared)]);
        let mut seen = Vec::new();
        for (word, (&x, &y)) in a.words.iter().zip(&b.words).enumerate() {
            if x == y {
                self.plain(at, word, x)?;
                hash.words(&[x]);
                continue;
            }
            let Some((buffer, offset)) = self.moved(x, y) else {
                return Err(Uncertified::Baked { node: self.label(at), word, first: x, second: y });
            };
            if !self.declares(at, buffer, offset) {
                let name = self.graph.buffer(buffer).name.clone();
                return Err(Uncertified::Undeclared { node: self.label(at), word, buffer: name, offset });
            }
            hash.words(&[u64::from(buffer.0), offset]);
            seen.push(buffer);
        }
        let regions = self.graph.nodes[at].op.regions();
        match regions.iter().map(|r| r.region.buffer).find(|b| !seen.contains(b)) {
            None => Ok(seen.len()),
            Some(unused) => {
                let buffer = self.graph.buffer(unused).name.clone();
                Err(Uncertified::Unused { node: self.label(at), buffer })
            }
        }
    }

    fn launch(&self, at: usize, a: &KernelCall, b: &KernelCall) -> Result<(), Uncertified> {
        let launch = &self.launches[at];
        let other = |what, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| Uncertified::Launch {
            node: self.label(at),
            what,
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        };
        for call in [a, b] {
            if call.symbol != launch.symbol() {
                return Err(other("the kernel", &launch.symbol(), &call.symbol));
            }
            if call.grid != launch.grid || call.block != [launch.block, 1, 1] {
                let expected = (launch.grid, [launch.block, 1, 1]);
                return Err(other("its grid and block", &expected, &(call.grid, call.block)));
            }
            if call.shared != launch.shared {
                return Err(other("its dynamic shared memory", &launch.shared, &call.shared));
            }
        }
        if a.words.len() != b.words.len() || a.words != launch.words() {
            return Err(other("its arguments", &launch.words(), &a.words));
        }
        Ok(())
    }

    /// A word that did not move must not point into a buffer that did.
    fn plain(&self, at: usize, word: usize, value: u64) -> Result<(), Uncertified> {
        let inside = |p: &Place| (p.address..p.address + p.bytes as u64).contains(&value);
        let stale = self.places.iter().position(|of| of.iter().any(inside));
        stale.map_or(Ok(()), |buffer| {
            let buffer = self.graph.buffers[buffer].name.clone();
            Err(Uncertified::Stale { node: self.label(at), word, buffer })
        })
    }

    /// The buffer that a word points into, by how far it moved, and the byte.
    fn moved(&self, first: u64, second: u64) -> Option<(BufferId, u64)> {
        let distance = second.wrapping_sub(first);
        let id = u32::try_from((distance >> 48).checked_sub(1)?).ok()?;
        let places = self.places.get(id as usize)?;
        let buffer = BufferId(id);
        let inside = places.iter().find(|p| (p.address..p.address + p.bytes as u64).contains(&first))?;
        (distance == displacement(buffer)).then_some((buffer, first - inside.address))
    }

    fn declares(&self, at: usize, buffer: BufferId, offset: u64) -> bool {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        // Scales of a weight lie in buffers of their own, so a weight's offsets say nothing.
        let whole = self.places[buffer.0 as usize].len() > 1;
        self.graph.nodes[at].op.regions().iter().any(|access| {
            let inside = match &access.region.part {
                Part::Bytes(range) => whole || range.contains(&offset),
                Part::Settled | Part::Tail => true,
            };
            access.region.buffer == buffer && inside
        })
    }
}

/// Fowler-Noll-Vo, 64 bits.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|w| self.bytes(&w.to_le_bytes()));
    }
}
