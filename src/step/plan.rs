//! The plan: where each transient lies in the arena.
//!
//! Two transients may share bytes only if every use of one comes before the first write of the other *in the graph*. The
//! order in which the host appended or launched them says nothing. A plan made for the forked graph therefore holds for
//! every schedule that adds edges to it, the serial one included.

use super::bits::Matrix;
use super::graph::{Class, EdgeKind, Graph};
use crate::ops::Mode;

/// Buffers start at multiples of this.
pub const ALIGN: usize = 256;

/// Byte offsets in the arena, by buffer; `None` for buffers that live elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub offsets: Vec<Option<usize>>,
    pub arena_bytes: usize,
}

impl Plan {
    /// Every transient in bytes of its own: the largest plan, with nothing to prove about sharing.
    #[must_use]
    pub fn unshared(graph: &Graph) -> Self {
        let mut plan = Self::default();
        for buffer in &graph.buffers {
            let transient = buffer.class == Class::Transient;
            plan.offsets.push(transient.then_some(plan.arena_bytes));
            if transient {
                plan.arena_bytes += buffer.bytes.next_multiple_of(ALIGN);
            }
        }
        plan
    }

    /// Transients share bytes where the graph's order allows it.
    #[must_use]
    pub fn shared(graph: &Graph) -> Self {
        Self::packed(graph, &completed_before(graph))
    }

    /// As [`Plan::shared`], taking `before` for the graph's order: what the planner's mutants lie about.
    pub(super) fn packed(graph: &Graph, before: &Matrix) -> Self {
        let lives = lives(graph);
        let apart = conflicts(&lives, before, graph.nodes.len());
        let (arena_bytes, placed) = pack(&lives, &apart);
        let mut offsets = vec![None; graph.buffers.len()];
        for (life, offset) in lives.iter().zip(placed) {
            offsets[life.buffer] = Some(offset);
        }
        Self { offsets, arena_bytes }
    }
}

/// Row `v` holds the nodes that have completed once `v` has waited. A programmatic edge counts only if its successor waits.
pub(super) fn completed_before(graph: &Graph) -> Matrix {
    let count = graph.nodes.len();
    let mut before = Matrix::new(count, count);
    let mut edges: Vec<_> = graph.edges.iter().collect();
    edges.sort_by_key(|e| e.to);
    for edge in edges {
        if edge.from < edge.to && (edge.kind == EdgeKind::Full || graph.node(edge.to).waits) {
            let (from, to) = (edge.from.0 as usize, edge.to.0 as usize);
            before.include(to, from);
            before.set(to, from);
        }
    }
    before
}

/// A transient and the nodes that use it.
struct Life {
    buffer: usize,
    /// Padded to [`ALIGN`].
    bytes: usize,
    uses: Vec<usize>,
    writes: Vec<usize>,
}

fn lives(graph: &Graph) -> Vec<Life> {
    let mut lives = Vec::new();
    let mut of = vec![usize::MAX; graph.buffers.len()];
    for (buffer, b) in graph.buffers.iter().enumerate().filter(|(_, b)| b.class == Class::Transient) {
        of[buffer] = lives.len();
        let bytes = b.bytes.next_multiple_of(ALIGN);
        lives.push(Life { buffer, bytes, uses: Vec::new(), writes: Vec::new() });
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        for access in node.op.regions() {
            if let Some(life) = lives.get_mut(of[access.region.buffer.0 as usize]) {
                life.uses.push(at);
                if access.mode == Mode::Write {
                    life.writes.push(at);
                }
            }
        }
    }
    lives
}

/// Pairs that must not share bytes. A value without a writer has no first write that could come after anything.
fn conflicts(lives: &[Life], before: &Matrix, nodes: usize) -> Matrix {
    let last: Vec<Vec<usize>> = lives.iter().map(|l| last_uses(&l.uses, before)).collect();
    // Bit `i` of row `v`: every use of value `i` has completed before node `v` writes.
    let mut over = Matrix::new(nodes, lives.len());
    let mut writers: Vec<usize> = lives.iter().flat_map(|l| l.writes.iter().copied()).collect();
    writers.sort_unstable();
    writers.dedup();
    for writer in writers {
        for (i, last) in last.iter().enumerate() {
            if last.iter().all(|&u| before.get(writer, u)) {
                over.set(writer, i);
            }
        }
    }
    let follows = |j: usize, i: usize| lives[j].writes.iter().all(|&w| over.get(w, i));
    let precedes = |i: usize, j: usize| last[i].is_empty() || (!lives[j].writes.is_empty() && follows(j, i));
    let mut apart = Matrix::new(lives.len(), lives.len());
    for i in 0..lives.len() {
        for j in 0..i {
            if !precedes(i, j) && !precedes(j, i) {
                apart.set(i, j);
                apart.set(j, i);
            }
        }
    }
    apart
}

/// The uses that no other use is known to follow.
fn last_uses(uses: &[usize], before: &Matrix) -> Vec<usize> {
    let followed = |&u: &usize| uses.iter().any(|&later| before.get(later, u));
    uses.iter().copied().filter(|u| !followed(u)).collect()
}

/// Repairs per order of placement.
const REPAIRS: usize = 2;

/// The best of several placements. Each starts from an order (by bytes, by the bytes that cannot be shared with a value, by
/// birth) and is repaired by placing the values that reach the top first.
fn pack(lives: &[Life], apart: &Matrix) -> (usize, Vec<usize>) {
    let mut best = (usize::MAX, Vec::new());
    for order in orders(lives, apart) {
        for fit in [Fit::Tightest, Fit::Lowest] {
            let mut order = order.clone();
            for _ in 0..=REPAIRS {
                let (arena, offsets) = place(lives, apart, &order, fit);
                order.sort_by_key(|&i| offsets[i] + lives[i].bytes != arena);
                if arena < best.0 {
                    best = (arena, offsets);
                }
            }
        }
    }
    best
}

fn orders(lives: &[Life], apart: &Matrix) -> Vec<Vec<usize>> {
    let crowd: Vec<usize> = (0..lives.len())
        .map(|i| ones(apart.row(i)).map(|j| lives[j].bytes).sum::<usize>() + lives[i].bytes)
        .collect();
    let sorted = |key: &dyn Fn(usize) -> (usize, usize)| {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(key(i)));
        order
    };
    let birth: Vec<usize> = (0..lives.len()).collect();
    vec![sorted(&|i| (lives[i].bytes, crowd[i])), sorted(&|i| (crowd[i], lives[i].bytes)), birth]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    Tightest,
    Lowest,
}

/// Gives each value a gap between those that it must not touch, or the end. Bytes of the arena and offsets.
fn place(lives: &[Life], apart: &Matrix, order: &[usize], fit: Fit) -> (usize, Vec<usize>) {
    let mut offsets = vec![usize::MAX; lives.len()];
    let mut arena = 0;
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for &i in order {
        taken.clear();
        let placed = ones(apart.row(i)).filter(|&j| offsets[j] != usize::MAX);
        taken.extend(placed.map(|j| (offsets[j], offsets[j] + lives[j].bytes)));
        taken.sort_unstable();
        offsets[i] = gap(&taken, lives[i].bytes, fit);
        arena = arena.max(offsets[i] + lives[i].bytes);
    }
    (arena, offsets)
}

fn gap(taken: &[(usize, usize)], bytes: usize, fit: Fit) -> usize {
    let (mut end, mut best) = (0, None);
    for &(from, to) in taken {
        let gap = from.saturating_sub(end);
        if gap >= bytes && best.is_none_or(|(least, _)| fit == Fit::Tightest && gap < least) {
            best = Some((gap, end));
        }
        end = end.max(to);
    }
    best.map_or(end, |(_, offset)| offset)
}

/// The most bytes of transients found that must all lie apart, though not all of them are ever alive at once: like the
/// largest peak, a bound below every plan.
#[must_use]
pub fn largest_clique(graph: &Graph) -> usize {
    let lives = lives(graph);
    let apart = conflicts(&lives, &completed_before(graph), graph.nodes.len());
    let clique = |start: usize| {
        let mut bytes = lives[start].bytes;
        let mut left = apart.row(start).to_vec();
        while let Some(next) = ones(&left).max_by_key(|&i| lives[i].bytes) {
            bytes += lives[next].bytes;
            left.iter_mut().zip(apart.row(next)).for_each(|(l, r)| *l &= r);
        }
        bytes
    };
    (0..lives.len()).map(clique).max().unwrap_or(0)
}

fn ones(row: &[u64]) -> impl Iterator<Item = usize> + '_ {
    row.iter().enumerate().flat_map(|(at, &word)| {
        std::iter::successors((word != 0).then_some(word), |w| Some(w & (w - 1)).filter(|w| *w != 0))
            .map(move |w| at * 64 + w.trailing_zeros() as usize)
    })
}
