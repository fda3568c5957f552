//! How a step's nodes reach a device: the stream that each goes to, and the events that it waits for.
//!
//! Lanes become streams, by name: a branch of one layer and the branch of the same name of the next share one, which
//! adds no order that their fork has not. An edge between two streams becomes an event, unless what the stream has waited for
//! already holds it. A backend issues a route eagerly or into a capture; in both it is the same calls.

use crate::step::{EdgeKind, Graph};

/// One node's place in a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// 0 is the stream that inputs and outputs are copied on.
    pub stream: usize,
    /// Nodes of other streams whose events it waits for, ascending.
    pub waits: Vec<usize>,
    /// The first of its stream, with nothing else to wait for: waits for what the main stream did before the step.
    pub starts: bool,
    /// Some later node, or the end of the step, waits for it.
    pub records: bool,
    /// Launched while its predecessors may still run; the kernel itself waits.
    pub programmatic: bool,
}

/// A step's nodes in append order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    pub stops: Vec<Stop>,
    pub streams: usize,
    /// The last node of every stream but the main one, which the main one waits for in the end.
    pub ends: Vec<usize>,
}

/// What a stream has waited for: of each stream, how many of its nodes, counted by their place in the step.
type Clock = Vec<usize>;

impl Route {
    /// Everything on one stream. Orders every node after the one before it, whatever the graph's edges are.
    #[must_use]
    pub fn serial(graph: &Graph) -> Self {
        let stops = (0..graph.nodes.len())
            .map(|at| Stop { programmatic: programmatic(graph, at), ..Stop::default() });
        Self { stops: stops.collect(), streams: 1, ends: Vec::new() }
    }

    /// Each lane on its stream, ordered by the graph's edges.
    #[must_use]
    pub fn forked(graph: &Graph) -> Self {
        let (lanes, streams) = streams(graph);
        // A node that does not wait passes on nothing of what came before it.
        let transitive = graph.nodes.iter().all(|n| n.waits);
        let mut route = Self { stops: Vec::new(), streams, ends: Vec::new() };
        let mut clocks: Vec<Clock> = vec![vec![0; streams]; streams];
        let mut after: Vec<Clock> = Vec::new();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
        for edge in &graph.edges {
            before[edge.to.0 as usize].push(edge.from.0 as usize);
        }
        for (at, node) in graph.nodes.iter().enumerate() {
            let stream = lanes[node.lane.0 as usize];
            let mut stop = Stop { stream, programmatic: programmatic(graph, at), ..Stop::default() };
            before[at].sort_unstable();
            for &from in before[at].iter().rev() {
                let other = route.stops[from].stream;
                if other != stream && clocks[stream][other] <= from {
                    stop.waits.push(from);
                    route.stops[from].records = true;
                    clocks[stream][other] = from + 1;
                    if transitive {
                        join(&mut clocks[stream], &after[from]);
                    }
                }
            }
            stop.waits.sort_unstable();
            stop.starts = stream != 0 && clocks[stream][stream] == 0 && stop.waits.is_empty();
            clocks[stream][stream] = at + 1;
            after.push(clocks[stream].clone());
            route.stops.push(stop);
        }
        for (stream, clock) in clocks.iter().enumerate().skip(1) {
            if let Some(last) = clock[stream].checked_sub(1) {
                route.stops[last].records = true;
                route.ends.push(last);
            }
        }
        route
    }
}

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
}

fn programmatic(graph: &Graph, at: usize) -> bool {
    let mut incoming = graph.edges.iter().filter(|e| e.to.0 as usize == at).peekable();
    incoming.peek().is_some() && incoming.all(|e| e.kind == EdgeKind::Programmatic)
}

/// The stream of each lane, and how many there are.
fn streams(graph: &Graph) -> (Vec<usize>, usize) {
    let mut names: Vec<&str> = vec!["main"];
    let mut of = |name| {
        names.iter().position(|n| *n == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        })
    };
    let lanes: Vec<usize> = graph.lanes.iter().map(|lane| of(lane.name.as_str())).collect();
    (lanes, names.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{ModelConfig, synthetic};
    use crate::format::index_row::IndexFormat;
    use crate::format::kv_row::KvFormat;
    use crate::model::{CacheLayout, CacheSize, ModelWeights, StepShape, build_step};
    use crate::ops::Dtype;
    use crate::step::{Edge, LaneId, NodeId, Numerics, Random, programmatic, serial};

    fn model() -> Graph {
        let compress_ratios = vec![0, 4, 128, 4];
        let config = ModelConfig { num_hidden_layers: 4, compress_ratios, ..synthetic::tiny_config() };
        let (weights, _) = ModelWeights::new(&config, 4096);
        let (kv, index) = (KvFormat::Bf16, IndexFormat::Bf16);
        let numerics = Numerics { activation: Dtype::Bf16, trained: false, kv, index };
        let layout = CacheLayout::new(&weights, numerics, CacheSize { window_pages: 9, blocks: 9, slots: 4 });
        build_step(&weights, &layout, numerics, StepShape::decode(4, 4096)).unwrap().graph
    }

    /// The edges that issuing a route makes.
    fn edges(route: &Route) -> Vec<Edge> {
        let mut last: Vec<Option<usize>> = vec![None; route.streams];
        let mut edges = Vec::new();
        for (at, stop) in route.stops.iter().enumerate() {
            for from in last[stop.stream].iter().chain(&stop.waits) {
                assert!(route.stops[*from].records || route.stops[*from].stream == stop.stream);
                let id = |n: usize| NodeId(u32::try_from(n).unwrap());
                edges.push(Edge { from: id(*from), to: id(at), kind: EdgeKind::Full });
            }
            last[stop.stream] = Some(at);
        }
        edges
    }

    /// Pairs of nodes in order.
    fn closure(count: usize, edges: &[Edge]) -> Vec<Vec<bool>> {
        let mut before = vec![vec![false; count]; count];
        let mut edges = edges.to_vec();
        edges.sort_by_key(|e| e.to);
        for edge in edges {
            let (from, to) = (edge.from.0 as usize, edge.to.0 as usize);
            let of_from = before[from].clone();
            before[to].iter_mut().zip(of_from).for_each(|(b, f)| *b |= f);
            before[to][from] = true;
        }
        before
    }

    fn keeps_every_edge(graph: &Graph, route: &Route) {
        let made = closure(graph.nodes.len(), &edges(route));
        for edge in &graph.edges {
            assert!(made[edge.to.0 as usize][edge.from.0 as usize], "{edge:?} is lost");
        }
    }

    #[test]
    fn a_forked_route_keeps_the_order_of_the_graph_and_adds_none_to_the_models() {
        let graph = model();
        let route = Route::forked(&graph);
        keeps_every_edge(&graph, &route);
        assert!(route.streams > 4, "{}", route.streams);
        let (made, declared) =
            (closure(graph.nodes.len(), &edges(&route)), closure(graph.nodes.len(), &graph.edges));
        assert_eq!(made, declared);
        let mut random = Random::new(7);
        for _ in 0..200 {
            let graph = shuffled(&graph, &mut random);
            keeps_every_edge(&graph, &Route::forked(&graph));
        }
    }

    /// The model's nodes on random lanes with random edges.
    fn shuffled(graph: &Graph, random: &mut Random) -> Graph {
        let mut graph = graph.clone();
        let count = graph.nodes.len();
        let lanes = graph.lanes.len();
        graph.nodes.iter_mut().for_each(|n| n.lane = LaneId(u32::try_from(random.below(lanes)).unwrap()));
        let id = |n: usize| NodeId(u32::try_from(n).unwrap());
        let edge = |random: &mut Random| {
            let to = 1 + random.below(count - 1);
            Edge { from: id(random.below(to)), to: id(to), kind: EdgeKind::Full }
        };
        graph.edges = (0..2 * count).map(|_| edge(random)).collect();
        graph
    }

    #[test]
    fn a_serial_route_is_one_stream() {
        let graph = model();
        let route = Route::serial(&graph);
        assert!(
            route.streams == 1
                && route.stops.iter().all(|s| s.waits.is_empty() && !s.records && !s.programmatic)
        );
        assert_eq!(
            closure(graph.nodes.len(), &edges(&route)),
            closure(graph.nodes.len(), &serial(&graph).edges)
        );
        let pdl = Route::serial(&programmatic(serial(&graph)));
        assert!(pdl.stops[1..].iter().all(|s| s.programmatic) && !pdl.stops[0].programmatic);
    }

    /// Where cudarc's one read event a slice loses the first reader (`proptests/gpu_events.rs`).
    #[test]
    fn a_write_waits_for_the_readers_of_every_lane() {
        let model = model();
        let node = |lane| crate::step::Node { lane: LaneId(lane), ..model.nodes[0].clone() };
        let edge = |from, to| Edge { from: NodeId(from), to: NodeId(to), kind: EdgeKind::Full };
        // Made on main, read on a side lane and then on main, written on main.
        let nodes = [0, 1, 0, 0].map(node).to_vec();
        let graph =
            Graph { nodes, edges: vec![edge(0, 1), edge(0, 2), edge(1, 3), edge(2, 3)], ..model.clone() };
        assert_eq!(Route::forked(&graph).stops[3].waits, [1]);
    }

    #[test]
    fn a_side_stream_that_comes_first_starts_after_the_main_one() {
        let mut graph = model();
        graph.edges.clear();
        let route = Route::forked(&graph);
        let first = |stream| route.stops.iter().find(|s| s.stream == stream).unwrap();
        assert!((1..route.streams).all(|s| first(s).starts) && !first(0).starts);
        assert_eq!(route.ends.len(), route.streams - 1);
    }
}
