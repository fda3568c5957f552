//! What a graph allows: its serial form, random legal orders, the bytes alive in them, the longest path and the widest front.

use super::graph::{Class, Edge, EdgeKind, Graph, NodeId};
use super::plan::ALIGN;
use super::random::Random;

/// The graph on one stream: each node after the one appended before it, and nothing else.
#[must_use]
pub fn serial(graph: &Graph) -> Graph {
    let next = |from: NodeId| Edge { from, to: NodeId(from.0 + 1), kind: EdgeKind::Full };
    let edges = graph.node_ids().take(graph.nodes.len().saturating_sub(1)).map(next).collect();
    Graph { edges, ..graph.clone() }
}

/// The graph with every launch programmatic: a kernel may begin while its predecessors run, and waits for them itself.
#[must_use]
pub fn programmatic(graph: Graph) -> Graph {
    let mut graph = graph;
    graph.edges.iter_mut().for_each(|e| e.kind = EdgeKind::Programmatic);
    graph
}

/// A legal serial order of the nodes: at each point any node may come next whose predecessors have run.
#[must_use]
pub fn random_order(graph: &Graph, random: &mut Random) -> Vec<usize> {
    let mut missing = vec![0usize; graph.nodes.len()];
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for edge in &graph.edges {
        missing[edge.to.0 as usize] += 1;
        next[edge.from.0 as usize].push(edge.to.0 as usize);
    }
    let mut ready: Vec<usize> = (0..missing.len()).filter(|&n| missing[n] == 0).collect();
    let mut order = Vec::with_capacity(missing.len());
    while !ready.is_empty() {
        let node = ready.swap_remove(random.below(ready.len()));
        order.push(node);
        for &n in &next[node] {
            missing[n] -= 1;
            if missing[n] == 0 {
                ready.push(n);
            }
        }
    }
    order
}

/// The most bytes of transients (padded as planned) that are alive at once in any of `orders` random legal orders: no plan
/// that holds for all orders can use fewer.
#[must_use]
pub fn largest_peak(graph: &Graph, orders: usize, seed: u64) -> usize {
    let uses: Vec<Vec<usize>> = graph.nodes.iter().map(|n| transients(graph, n)).collect();
    let mut random = Random::new(seed);
    (0..orders).map(|_| peak(graph, &uses, &random_order(graph, &mut random))).max().unwrap_or(0)
}

fn transients(graph: &Graph, node: &super::Node) -> Vec<usize> {
    let buffers = node.op.regions().into_iter().map(|a| a.region.buffer);
    let mut all: Vec<usize> =
        buffers.filter(|b| graph.buffer(*b).class == Class::Transient).map(|b| b.0 as usize).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn peak(graph: &Graph, uses: &[Vec<usize>], order: &[usize]) -> usize {
    let mut left = vec![0usize; graph.buffers.len()];
    for buffer in uses.iter().flatten() {
        left[*buffer] += 1;
    }
    let all = left.clone();
    let (mut alive, mut peak) = (0, 0);
    for &node in order {
        let bytes = |b: usize| graph.buffers[b].bytes.next_multiple_of(ALIGN);
        alive += uses[node].iter().filter(|b| left[**b] == all[**b]).map(|b| bytes(*b)).sum::<usize>();
        peak = peak.max(alive);
        for &buffer in &uses[node] {
            left[buffer] -= 1;
            alive -= if left[buffer] == 0 { bytes(buffer) } else { 0 };
        }
    }
    peak
}

/// The most nodes on one path.
#[must_use]
pub fn critical_path(graph: &Graph) -> usize {
    depths(graph).into_iter().max().map_or(0, |deepest| deepest + 1)
}

/// The most nodes that stand at the same distance from the start: how many lanes are busy at once if every node takes as
/// long as any other.
#[must_use]
pub fn width(graph: &Graph) -> usize {
    let mut count = vec![0usize; graph.nodes.len()];
    for depth in depths(graph) {
        count[depth] += 1;
    }
    count.into_iter().max().unwrap_or(0)
}

/// Edges on the longest path to each node.
fn depths(graph: &Graph) -> Vec<usize> {
    let mut depths = vec![0usize; graph.nodes.len()];
    let mut edges: Vec<_> = graph.edges.iter().collect();
    edges.sort_by_key(|e| e.to);
    for edge in edges {
        let through = depths[edge.from.0 as usize] + 1;
        let to = &mut depths[edge.to.0 as usize];
        *to = through.max(*to);
    }
    depths
}
