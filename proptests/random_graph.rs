//! Random steps: nested forks and channels over operations with one to three outputs, values of many sizes.

use flashlane::ops::{BufferId, Dtype, HyperPost, HyperPre, Op, RmsNorm, Tokens, Value};
use flashlane::step::{
    Buffer, Class, Edge, EdgeKind, Graph, LaneId, LaneInfo, Node, NodeId, Random, WeightId,
};

/// A graph under construction.
pub(crate) struct Maker {
    pub(crate) graph: Graph,
    pub(crate) random: Random,
    weight: Value,
    position: Value,
}

/// What a lane has: the nodes that its next one follows, and the values that it may read.
#[derive(Clone)]
struct Reach {
    frontier: Vec<NodeId>,
    values: Vec<Value>,
}

/// A step of about `nodes` nodes; its last node reads the first output of every lane.
pub(crate) fn random_graph(seed: u64, nodes: usize) -> Graph {
    let mut maker = Maker::new(seed);
    let input = maker.buffer("input", Class::Input, 64);
    let mut reach = Reach { frontier: Vec::new(), values: vec![input] };
    maker.lane("main", None);
    maker.body(LaneId(0), &mut reach, nodes, 3);
    maker.graph.edges.sort();
    maker.graph.edges.dedup();
    maker.graph
}

impl Maker {
    fn new(seed: u64) -> Self {
        let nothing = Value { buffer: BufferId(0), dtype: Dtype::U8, len: 0 };
        let mut maker =
            Self { graph: Graph::default(), random: Random::new(seed), weight: nothing, position: nothing };
        maker.weight = maker.buffer("weight", Class::Weight(WeightId(0)), 64);
        maker.position = maker.buffer("position", Class::Input, 4);
        maker
    }

    fn buffer(&mut self, name: &str, class: Class, len: usize) -> Value {
        let id = BufferId(self.graph.buffers.len() as u32);
        let name = format!("{name}.{}", id.0);
        self.graph.buffers.push(Buffer { name, class, dtype: Dtype::U8, shape: vec![len], bytes: len });
        Value { buffer: id, dtype: Dtype::U8, len }
    }

    fn fresh(&mut self) -> Value {
        let units = [1, 1, 2, 4, 4, 8, 16, 31, 64][self.random.below(9)];
        self.buffer("v", Class::Transient, units * 256)
    }

    fn lane(&mut self, name: &str, parent: Option<LaneId>) -> LaneId {
        self.graph.lanes.push(LaneInfo { name: name.into(), parent });
        LaneId(self.graph.lanes.len() as u32 - 1)
    }

    fn body(&mut self, lane: LaneId, reach: &mut Reach, mut nodes: usize, depth: usize) {
        while nodes > 0 {
            if nodes >= 4 && depth > 0 && self.random.chance(25) {
                let inside = 2 + self.random.below((nodes - 2).min(12));
                self.fork(lane, reach, inside, depth - 1);
                nodes -= inside;
            } else {
                self.append(lane, reach);
                nodes -= 1;
            }
        }
    }

    fn fork(&mut self, lane: LaneId, reach: &mut Reach, nodes: usize, depth: usize) {
        let branches = 2 + self.random.below(2).min(nodes - 2);
        let mut joined = Reach { frontier: Vec::new(), values: Vec::new() };
        let mut channel: Option<Reach> = None;
        for branch in 0..branches {
            let name = format!("{}/{branch}", self.graph.lanes[lane.0 as usize].name);
            let child = self.lane(&name, Some(lane));
            let mut own = reach.clone();
            if let Some(sent) = channel.take().filter(|_| self.random.chance(60)) {
                own.frontier.extend(&sent.frontier);
                own.values.extend(sent.values);
            }
            self.body(child, &mut own, (nodes / branches).max(1), depth);
            channel = Some(Reach {
                frontier: own.frontier.clone(),
                values: own.values.last().copied().into_iter().collect(),
            });
            joined.frontier.extend(&own.frontier);
            // Most values end with their branch.
            let results = own.values.split_off(own.values.len() - 2.min(own.values.len()));
            joined.values.extend(results);
        }
        joined.frontier.sort();
        joined.frontier.dedup();
        joined
            .values
            .extend(reach.values.iter().filter(|_| self.random.chance(50)).copied().collect::<Vec<_>>());
        *reach = joined;
    }

    /// Newer values are read more often, as in a model.
    fn pick(&mut self, reach: &Reach) -> Value {
        let newest = reach.values.len().min(if self.random.chance(85) { 3 } else { usize::MAX });
        reach.values[reach.values.len() - 1 - self.random.below(newest)]
    }

    fn append(&mut self, lane: LaneId, reach: &mut Reach) {
        let tokens = Tokens { requests: 1, per_request: 1, position: self.position };
        let x = self.pick(reach);
        let op = match self.random.below(4) {
            0 => {
                let (y, post, comb) = (self.pick(reach), self.pick(reach), self.pick(reach));
                let out = self.fresh();
                reach.values.push(out);
                Op::HyperPost(HyperPost { tokens, streams: x, y, post, comb, out, n: 4, hidden: 16 })
            }
            1 => {
                let (out, post, comb) = (self.fresh(), self.fresh(), self.fresh());
                reach.values.extend([out, post, comb]);
                self.pre(tokens, x, out, post, comb)
            }
            _ => {
                let out = self.fresh();
                reach.values.push(out);
                Op::RmsNorm(RmsNorm { x, weight: self.weight, out, rows: 1, width: 1, eps: 0.0 })
            }
        };
        let id = NodeId(self.graph.nodes.len() as u32);
        self.graph.nodes.push(Node { op, lane, scope: "top".into(), waits: true });
        for from in std::mem::replace(&mut reach.frontier, vec![id]) {
            self.graph.edges.push(Edge { from, to: id, kind: EdgeKind::Full });
        }
    }

    fn pre(&self, tokens: Tokens, streams: Value, out: Value, post: Value, comb: Value) -> Op {
        let weight = self.weight;
        Op::HyperPre(HyperPre {
            tokens,
            streams,
            mix: weight,
            base: weight,
            scale: weight,
            norm: weight,
            out,
            post,
            comb,
            n: 4,
            hidden: 16,
            sinkhorn_iters: 20,
            eps: 0.0,
            hc_eps: 0.0,
        })
    }
}
