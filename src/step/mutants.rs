//! Known bugs, recreated by name in a step that has none: each must be found by the check that is there for it, and each
//! corrupts when it is run in some order that the edges allow.

use std::str::FromStr;

use super::bits::Matrix;
use super::graph::{Class, Edge, EdgeKind, Graph, LaneId, NodeId};
use super::plan::{ALIGN, Plan, completed_before};
use crate::ops::{Access, BufferId, Compressed, Mode, Op, PAGE_ROWS, Paged};

/// The check that finds a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// The proof of one step.
    Order,
    /// The proof of the engine's loop, which sees two steps in one arena.
    Loop,
    /// A bucket built twice gives the same graph.
    Purity,
    /// The inputs and the views that nodes have of them.
    Layout,
}

impl Check {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Loop => "loop",
            Self::Purity => "purity",
            Self::Layout => "layout",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    FreeByHostOrder,
    DroppedJoin,
    SharedScratch,
    PdlAsOrder,
    BakedLength,
    BakedStride,
    SharedArena,
    SerialClobber,
}

/// No mutant has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mutant {found:?} is not known; expected one of {}", Mutant::ALL.map(Mutant::slug).join(", "))]
pub struct UnknownMutant {
    found: String,
}

impl FromStr for Mutant {
    type Err = UnknownMutant;

    fn from_str(slug: &str) -> Result<Self, UnknownMutant> {
        let found = Self::ALL.into_iter().find(|m| m.slug() == slug);
        found.ok_or_else(|| UnknownMutant { found: slug.to_owned() })
    }
}

/// A step with a mutant in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mutated {
    pub graph: Graph,
    pub plan: Plan,
    /// What was changed, with the nodes' names.
    pub place: String,
    /// An output that the host reads in the arena itself.
    pub live: Vec<BufferId>,
}

impl Mutant {
    pub const ALL: [Self; 8] = [
        Self::FreeByHostOrder,
        Self::DroppedJoin,
        Self::SharedScratch,
        Self::PdlAsOrder,
        Self::BakedLength,
        Self::BakedStride,
        Self::SharedArena,
        Self::SerialClobber,
    ];

    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::FreeByHostOrder => "free-by-host-order",
            Self::DroppedJoin => "dropped-join",
            Self::SharedScratch => "shared-scratch",
            Self::PdlAsOrder => "pdl-as-order",
            Self::BakedLength => "baked-length",
            Self::BakedStride => "baked-stride",
            Self::SharedArena => "shared-arena",
            Self::SerialClobber => "serial-clobber",
        }
    }

    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::FreeByHostOrder => {
                "bytes are given on once their last reader is launched, not once it is done"
            }
            Self::DroppedJoin => "a lane goes on without waiting for the branch whose value it reads",
            Self::SharedScratch => "two nodes that nothing orders keep their results in the same bytes",
            Self::PdlAsOrder => "a programmatic edge to a kernel that never waits is taken for order",
            Self::BakedLength => "the shortcut for short contexts is captured and replayed on long ones",
            Self::BakedStride => "a page table is read by the row stride of the batch that was captured",
            Self::SharedArena => "an output stays in the arena and is read after the next step has begun",
            Self::SerialClobber => "a value is overwritten on its own lane before its last reader",
        }
    }

    #[must_use]
    pub const fn check(self) -> Check {
        match self {
            Self::BakedLength => Check::Purity,
            Self::BakedStride => Check::Layout,
            Self::SharedArena => Check::Loop,
            _ => Check::Order,
        }
    }

    /// The step with the bug in it; `None` if the step has no place for it.
    #[must_use]
    pub fn apply(self, graph: &Graph, plan: &Plan) -> Option<Mutated> {
        let (mut graph, mut plan, mut live) = (graph.clone(), plan.clone(), Vec::new());
        let place = match self {
            Self::FreeByHostOrder => free_by_host_order(&graph, &mut plan),
            Self::DroppedJoin => dropped_join(&mut graph),
            Self::SharedScratch => shared_scratch(&graph, &mut plan),
            Self::PdlAsOrder => pdl_as_order(&mut graph),
            Self::BakedLength => {
                graph = bake_length(&graph, 1)?;
                Some("captured with a context of 1".to_owned())
            }
            Self::BakedStride => {
                graph = bake_stride(&graph, 1)?;
                Some("captured with a context of 1".to_owned())
            }
            Self::SharedArena => shared_arena(&mut graph, &mut plan, &mut live),
            Self::SerialClobber => serial_clobber(&graph, &mut plan),
        }?;
        Some(Mutated { graph, plan, place, live })
    }

    /// The graph as a host that bakes the captured request's length into it would build it; `None` if the mutant bakes
    /// nothing, or the step has no place for it.
    #[must_use]
    pub fn bake(self, graph: &Graph, length: usize) -> Option<Graph> {
        match self {
            Self::BakedLength => bake_length(graph, length),
            Self::BakedStride => bake_stride(graph, length),
            _ => None,
        }
    }
}

fn free_by_host_order(graph: &Graph, plan: &mut Plan) -> Option<String> {
    let count = graph.nodes.len();
    let mut host = Matrix::new(count, count);
    for node in 1..count {
        host.include(node, node - 1);
        host.set(node, node - 1);
    }
    *plan = Plan::packed(graph, &host);
    Some(format!("the arena of {} bytes", plan.arena_bytes))
}

fn dropped_join(graph: &mut Graph) -> Option<String> {
    let joins = |e: &Edge| {
        let (from, to) = (graph.node(e.from), graph.node(e.to));
        !within(graph, to.lane, from.lane) && reads_what_it_writes(graph, e.from, e.to)
    };
    let mut candidates: Vec<Edge> = graph.edges.iter().copied().filter(joins).collect();
    candidates.retain(|edge| {
        let mut cut = graph.clone();
        cut.edges.retain(|e| e != edge);
        !completed_before(&cut).get(edge.to.0 as usize, edge.from.0 as usize)
    });
    let edge = widest(&candidates, |e| carried(graph, e.from, e.to))?;
    graph.edges.retain(|e| *e != edge);
    Some(format!("no edge from {} to {}", graph.label(edge.from), graph.label(edge.to)))
}

fn pdl_as_order(graph: &mut Graph) -> Option<String> {
    let mut candidates = Vec::new();
    for to in graph.node_ids() {
        let mut from = graph.edges.iter().filter(|e| e.to == to);
        if let (Some(edge), None) = (from.next(), from.next())
            && reads_what_it_writes(graph, edge.from, to)
        {
            candidates.push((edge.from, to));
        }
    }
    // Of the main lane if it has any: all that comes later is made of its values.
    let main = |n: NodeId| graph.lanes[graph.node(n).lane.0 as usize].parent.is_none();
    if candidates.iter().any(|&(from, to)| main(from) && main(to)) {
        candidates.retain(|&(from, to)| main(from) && main(to));
    }
    let (_, node) = widest(&candidates, |&(from, to)| carried(graph, from, to))?;
    graph.nodes[node.0 as usize].waits = false;
    graph.edges.iter_mut().filter(|e| e.to == node).for_each(|e| e.kind = EdgeKind::Programmatic);
    Some(format!("{} is launched programmatically and never waits", graph.label(node)))
}

fn shared_scratch(graph: &Graph, plan: &mut Plan) -> Option<String> {
    let (lives, before) = (lives(graph), completed_before(graph));
    let unordered = |a: usize, b: usize| !before.get(a, b) && !before.get(b, a);
    let mut candidates = Vec::new();
    for (i, x) in lives.iter().enumerate() {
        // Silent in append order, and a reader of one is loose from the writer of the other.
        let after = lives[i + 1..].iter().filter(|y| x.last() < y.written && y.uses.len() > 1);
        let loose = |y: &&Life| x.uses.len() > 1 && unordered(x.last(), y.written);
        candidates.extend(after.filter(loose).map(|y| (x.buffer, y.buffer)));
    }
    let bytes = |b: BufferId| graph.buffer(b).bytes;
    let (x, y) = widest(&candidates, |&(x, y)| bytes(x).min(bytes(y)))?;
    Some(same_bytes(graph, plan, x, y))
}

fn serial_clobber(graph: &Graph, plan: &mut Plan) -> Option<String> {
    let (lives, before) = (lives(graph), completed_before(graph));
    let ordered = |a: usize, b: usize| before.get(a, b) || before.get(b, a);
    let mut candidates = Vec::new();
    for (i, x) in lives.iter().enumerate() {
        for y in lives[i + 1..].iter().take_while(|y| y.written < x.last()) {
            let apart = x.uses.iter().all(|&u| y.uses.iter().all(|&v| u != v && ordered(u, v)));
            let lane = |n: usize| graph.nodes[n].lane;
            if apart && lane(x.written) == lane(y.written) && lane(x.last()) == lane(y.written) {
                candidates.push((x.buffer, y.buffer));
            }
        }
    }
    let (x, y) = middle(&candidates)?;
    Some(same_bytes(graph, plan, x, y))
}

fn shared_arena(graph: &mut Graph, plan: &mut Plan, live: &mut Vec<BufferId>) -> Option<String> {
    let written = |node: &super::Node| {
        let writes = node.op.regions().into_iter().filter(|a| a.mode == Mode::Write);
        writes.map(|a| a.region.buffer).find(|b| graph.buffer(*b).class == Class::Output)
    };
    let output = graph.nodes.iter().rev().find_map(written)?;
    graph.buffers[output.0 as usize].class = Class::Transient;
    *plan = Plan::shared(graph);
    live.push(output);
    Some(format!("{} in the arena", graph.buffer(output).name))
}

/// The top-k of contexts that fit into it takes the first rows: harmless when captured, wrong when replayed.
fn bake_length(graph: &Graph, length: usize) -> Option<Graph> {
    edited(graph, |op| match op {
        Op::TopK(topk) => {
            let short = length / 4 <= topk.k;
            topk.width = if short { topk.k.min(topk.width) } else { topk.width };
            topk.logits.len = topk.tokens.rows() * topk.width;
            true
        }
        _ => false,
    })
}

/// Attention reads its window table by the stride of the longest captured context.
fn bake_stride(graph: &Graph, length: usize) -> Option<Graph> {
    let narrow = |paged: &mut Paged, pages: usize| {
        let requests = paged.table.len / paged.width.max(1);
        paged.width = pages.clamp(1, paged.width);
        paged.table.len = requests * paged.width;
    };
    edited(graph, |op| match op {
        Op::Attention(attention) => {
            narrow(&mut attention.window, length.div_ceil(PAGE_ROWS) + 1);
            if let Compressed::Selected { rows, .. } | Compressed::All { rows } = &mut attention.compressed {
                narrow(rows, length.div_ceil(crate::ops::BLOCK_TOKENS) + 1);
            }
            true
        }
        _ => false,
    })
}

/// The graph with an edit of its operations; `None` if it applied to none.
fn edited(graph: &Graph, edit: impl Fn(&mut Op) -> bool) -> Option<Graph> {
    let mut graph = graph.clone();
    let applied = graph.nodes.iter_mut().filter_map(|n| edit(&mut n.op).then_some(())).count();
    (applied > 0).then_some(graph)
}

/// A transient with its uses in append order, the first of which writes it.
struct Life {
    buffer: BufferId,
    written: usize,
    uses: Vec<usize>,
}

impl Life {
    fn last(&self) -> usize {
        self.uses.last().copied().unwrap_or(self.written)
    }
}

fn lives(graph: &Graph) -> Vec<Life> {
    let mut uses: Vec<Vec<usize>> = vec![Vec::new(); graph.buffers.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for access in node.op.regions() {
            let uses = &mut uses[access.region.buffer.0 as usize];
            if uses.last() != Some(&at) {
                uses.push(at);
            }
        }
    }
    let transients = graph.buffer_ids().filter(|b| graph.buffer(*b).class == Class::Transient);
    let mut lives: Vec<Life> = transients
        .filter_map(|buffer| {
            let uses = std::mem::take(&mut uses[buffer.0 as usize]);
            uses.first().copied().map(|written| Life { buffer, written, uses })
        })
        .collect();
    lives.sort_by_key(|l| l.written);
    lives
}

/// Puts both at the arena's end, clear of everything else.
fn same_bytes(graph: &Graph, plan: &mut Plan, x: BufferId, y: BufferId) -> String {
    let (at, bytes) = (plan.arena_bytes, graph.buffer(x).bytes.max(graph.buffer(y).bytes));
    for buffer in [x, y] {
        plan.offsets[buffer.0 as usize] = Some(at);
    }
    plan.arena_bytes += bytes.next_multiple_of(ALIGN);
    format!("{} and {} both at byte {at}", graph.buffer(x).name, graph.buffer(y).name)
}

fn reads_what_it_writes(graph: &Graph, writer: NodeId, reader: NodeId) -> bool {
    let (writes, reads) = (graph.node(writer).op.regions(), graph.node(reader).op.regions());
    let of = |b: BufferId| reads.iter().any(|r| r.mode == Mode::Read && r.region.buffer == b);
    writes.iter().any(|w| w.mode == Mode::Write && of(w.region.buffer))
}

/// Bytes of the transients that one node writes and another reads.
fn carried(graph: &Graph, writer: NodeId, reader: NodeId) -> usize {
    let (writes, reads) = (graph.node(writer).op.regions(), graph.node(reader).op.regions());
    let transient = graph.buffer_ids().filter(|b| graph.buffer(*b).class == Class::Transient);
    let uses = |all: &[Access], mode, b| all.iter().any(|a| a.mode == mode && a.region.buffer == b);
    let carried = transient.filter(|&b| uses(&writes, Mode::Write, b) && uses(&reads, Mode::Read, b));
    carried.map(|b| graph.buffer(b).bytes).sum()
}

/// `lane` is `outer` or a branch below it.
fn within(graph: &Graph, lane: LaneId, outer: LaneId) -> bool {
    let parent = |l: &LaneId| graph.lanes[l.0 as usize].parent;
    std::iter::successors(Some(lane), parent).any(|l| l == outer)
}

/// Where most bytes are at stake: what a token is depends little on one layer's narrow values, and a bug there strikes without
/// being seen.
fn widest<V: Copy>(candidates: &[V], bytes: impl Fn(&V) -> usize) -> Option<V> {
    let most = candidates.iter().map(&bytes).max()?;
    let widest: Vec<V> = candidates.iter().copied().filter(|v| bytes(v) == most).collect();
    middle(&widest)
}

/// The middle layers are like any other, and far from the ends of a step.
fn middle<V: Copy>(candidates: &[V]) -> Option<V> {
    candidates.get(candidates.len() / 2).copied()
}
