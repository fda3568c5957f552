//! The proof: every conflicting pair of accesses of a program is ordered, and every read finds its value, in every order
//! that the edges allow.
//!
//! A node has four events: it begins, has waited, triggers, completes; it begins before each of the others and completes
//! after them, and that is all that is assumed. A full edge completes before its successor begins. A programmatic edge
//! triggers before its successor begins, and completes before the successor has waited, if the successor waits.
//!
//! It shares no code with the planner and takes a plan as it finds it. What is declared is assumed: that nodes touch no
//! more than their uses, and that settled and tail rows are disjoint (`layout`).

use std::collections::BTreeMap;
use std::ops::Range;

use super::graph::EdgeKind;
use super::hazard::{Hazard, Party, Rule, bytes_of, needs_writer};
use super::program::{Kind, Program, Space, Use};
use crate::ops::Mode;

/// What was proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proved {
    pub nodes: usize,
    pub edges: usize,
    /// Conflicting pairs of accesses, all ordered.
    pub pairs: usize,
    /// Reads, each of which finds its value.
    pub reads: usize,
}

/// Proves a program free of hazards.
///
/// # Errors
/// Every hazard, sorted by the nodes' places in the program.
pub fn prove(program: &Program) -> Result<Proved, Vec<Hazard>> {
    let (order, circle) = topological(program);
    let incoming = incoming(program);
    let mut prover = Prover {
        program,
        closure: Closure::new(program, &order, &incoming),
        incoming,
        writers: writers(program),
        hazards: circle.into_iter().map(|node| alone(program, node, Rule::Acyclic, None)).collect(),
        order,
        proved: Proved { nodes: program.nodes.len(), edges: program.edges.len(), pairs: 0, reads: 0 },
    };
    for (space, accesses) in &by_space(program) {
        prover.space(*space, accesses);
    }
    prover.finish()
}

/// A use and the node that makes it, with what the inner loop needs beside it.
#[derive(Clone, Copy)]
struct Access<'a> {
    node: usize,
    start: usize,
    end: usize,
    one: &'a Use,
    writes: bool,
}

impl<'a> Access<'a> {
    fn new(node: usize, one: &'a Use) -> Self {
        Self { node, start: one.range.start, end: one.range.end, one, writes: one.mode == Mode::Write }
    }

    fn overlap(&self, other: &Access<'_>) -> Range<usize> {
        self.start.max(other.start)..self.end.min(other.end)
    }
}

struct Prover<'a> {
    program: &'a Program,
    closure: Closure,
    /// By object.
    writers: Vec<Vec<Access<'a>>>,
    hazards: Vec<Hazard>,
    order: Vec<usize>,
    incoming: Vec<Vec<(usize, EdgeKind)>>,
    proved: Proved,
}

impl<'a> Prover<'a> {
    /// Accesses of one space, sorted by where they start.
    fn space(&mut self, space: Space, accesses: &[Access<'a>]) {
        for a in accesses {
            self.alone(space, a);
        }
        if !accesses.iter().any(|a| a.writes) {
            return;
        }
        for (i, a) in accesses.iter().enumerate() {
            for b in accesses[i + 1..].iter().take_while(|b| b.start < a.end) {
                if (a.writes || b.writes) && !a.overlap(b).is_empty() {
                    self.pair(space, a, b);
                }
            }
        }
    }

    /// What can be wrong with an access by itself.
    fn alone(&mut self, space: Space, a: &Access<'a>) {
        let kind = self.program.objects[a.one.object.0 as usize].kind;
        if a.writes {
            if kind == Kind::Frozen {
                self.report(Rule::Frozen, space, a.one.range.clone(), a, None);
            }
            return;
        }
        self.proved.reads += 1;
        if needs_writer(kind) {
            let mut missing = vec![a.one.range.clone()];
            for writer in &self.writers[a.one.object.0 as usize] {
                if self.ordered(writer, a) || (writer.node == a.node && self.private(a)) {
                    subtract(&mut missing, &writer.one.range);
                }
            }
            if let Some(range) = missing.into_iter().next() {
                self.report(Rule::Value, space, range, a, None);
            }
        }
    }

    fn pair(&mut self, space: Space, a: &Access<'a>, b: &Access<'a>) {
        let (a, b) = if a.node <= b.node { (a, b) } else { (b, a) };
        let same = a.one.object == b.one.object;
        if a.node == b.node {
            if !same || (a.one.mode != b.one.mode && !self.private(a)) {
                self.report(Rule::Order, space, a.overlap(b), a, None);
            }
            return;
        }
        self.proved.pairs += 1;
        let forward = self.ordered(a, b);
        if !forward && !self.ordered(b, a) {
            self.report(Rule::Order, space, a.overlap(b), a, Some(b));
        } else if !same {
            match (a.writes, b.writes, forward) {
                (true, false, true) => self.overwritten(space, b, a),
                (false, true, false) => self.overwritten(space, a, b),
                _ => {}
            }
        }
    }

    /// `foreign` is a write of another value before `read`: each shared byte must have been written anew in between.
    fn overwritten(&mut self, space: Space, read: &Access<'a>, foreign: &Access<'a>) {
        let shared = read.overlap(foreign);
        let renews = |writer: &&Access<'_>| {
            let written = self.ordered(writer, read) || (writer.node == read.node && self.private(read));
            written && self.ordered(foreign, writer)
        };
        let writers = &self.writers[read.one.object.0 as usize];
        // Nearly every value has one writer, of all its bytes.
        let whole = |w: &Access<'_>| w.start <= shared.start && shared.end <= w.end && renews(&w);
        if writers.first().is_some_and(whole) {
            return;
        }
        let mut lost = vec![shared];
        writers.iter().filter(renews).for_each(|w| subtract(&mut lost, &w.one.range));
        if let Some(range) = lost.into_iter().next() {
            self.report(Rule::Value, space, range, read, Some(foreign));
        }
    }

    /// `a` has ended when `b` starts, in every order.
    fn ordered(&self, a: &Access<'_>, b: &Access<'_>) -> bool {
        self.closure.completed(a.node, b.node, b.one.early)
    }

    /// The object is scratch of this node alone.
    fn private(&self, a: &Access<'_>) -> bool {
        let object = a.one.object;
        let others = self.program.nodes.iter().enumerate().filter(|(n, _)| *n != a.node);
        !others.flat_map(|(_, n)| &n.uses).any(|u| u.object == object)
    }

    fn report(
        &mut self,
        rule: Rule,
        space: Space,
        range: Range<usize>,
        a: &Access<'a>,
        b: Option<&Access<'a>>,
    ) {
        let party = |x: &Access<'_>| Party::new(self.program, x.node, x.one);
        let ancestor = b.and_then(|b| self.nearest_common_ancestor(a.node, b.node));
        self.hazards.push(Hazard {
            rule,
            first: party(a),
            second: b.map(party),
            space,
            bytes: bytes_of(space, range),
            ancestor: ancestor.map(|n| self.program.nodes[n].label.clone()),
        });
    }

    /// The last node that both descend from, by edges of either kind; a node descends from itself.
    fn nearest_common_ancestor(&self, a: usize, b: usize) -> Option<usize> {
        let ancestors = |start: usize| {
            let (mut seen, mut open) = (vec![false; self.incoming.len()], vec![start]);
            while let Some(node) = open.pop() {
                if !std::mem::replace(&mut seen[node], true) {
                    open.extend(self.incoming[node].iter().map(|(from, _)| *from));
                }
            }
            seen
        };
        let (of_a, of_b) = (ancestors(a), ancestors(b));
        self.order.iter().rev().copied().find(|&n| of_a[n] && of_b[n])
    }

    fn finish(mut self) -> Result<Proved, Vec<Hazard>> {
        if self.hazards.is_empty() {
            return Ok(self.proved);
        }
        self.hazards.sort_by_key(Hazard::key);
        self.hazards.dedup();
        Err(self.hazards)
    }
}

fn alone(program: &Program, node: usize, rule: Rule, space: Option<Space>) -> Hazard {
    let actor = &program.nodes[node];
    let first = Party {
        node: super::NodeId(u32::try_from(node).unwrap_or(u32::MAX)),
        op: actor.label.clone(),
        lane: actor.lane.clone(),
        object: String::new(),
        mode: Mode::Read,
        early: false,
    };
    let space = space.unwrap_or(Space::Arena(0));
    Hazard { rule, first, second: None, space, bytes: None, ancestor: None }
}

fn writers(program: &Program) -> Vec<Vec<Access<'_>>> {
    let mut writers = vec![Vec::new(); program.objects.len()];
    for (node, actor) in program.nodes.iter().enumerate() {
        for one in actor.uses.iter().filter(|u| u.mode == Mode::Write) {
            writers[one.object.0 as usize].push(Access::new(node, one));
        }
    }
    writers
}

fn by_space(program: &Program) -> BTreeMap<Space, Vec<Access<'_>>> {
    let mut spaces: BTreeMap<Space, Vec<Access<'_>>> = BTreeMap::new();
    for (node, actor) in program.nodes.iter().enumerate() {
        for one in &actor.uses {
            spaces
                .entry(program.objects[one.object.0 as usize].space)
                .or_default()
                .push(Access::new(node, one));
        }
    }
    for accesses in spaces.values_mut() {
        accesses.sort_by_key(|a| a.start);
    }
    spaces
}

/// Removes `cut` from a set of ranges.
fn subtract(ranges: &mut Vec<Range<usize>>, cut: &Range<usize>) {
    let pieces = ranges.iter().flat_map(|r| [r.start..r.end.min(cut.start), r.start.max(cut.end)..r.end]);
    *ranges = pieces.filter(|r| !r.is_empty()).collect();
}

/// For each node, the nodes that have completed when it begins, and when it has waited.
struct Closure {
    words: usize,
    begun: Vec<u64>,
    waited: Vec<u64>,
}

impl Closure {
    fn new(program: &Program, order: &[usize], incoming: &[Vec<(usize, EdgeKind)>]) -> Self {
        let count = program.nodes.len();
        let words = count.div_ceil(64);
        let mut closure = Self { words, begun: vec![0; count * words], waited: vec![0; count * words] };
        for &node in order {
            closure.enter(node, &incoming[node], program.nodes[node].waits);
        }
        closure
    }

    fn enter(&mut self, node: usize, incoming: &[(usize, EdgeKind)], waits: bool) {
        let (mut begun, mut waited) = (vec![0; self.words], vec![0; self.words]);
        for &(from, kind) in incoming {
            let row = from * self.words..(from + 1) * self.words;
            let completed = if kind == EdgeKind::Full { &mut begun } else { &mut waited };
            if kind == EdgeKind::Full || waits {
                or(completed, &self.waited[row.clone()]);
                completed[from / 64] |= 1 << (from % 64);
            }
            // A predecessor may trigger as soon as it begins.
            or(&mut begun, &self.begun[row]);
        }
        or(&mut waited, &begun);
        let row = node * self.words..(node + 1) * self.words;
        self.begun[row.clone()].copy_from_slice(&begun);
        self.waited[row].copy_from_slice(&waited);
    }

    fn completed(&self, a: usize, b: usize, early: bool) -> bool {
        let rows = if early { &self.begun } else { &self.waited };
        rows[b * self.words + a / 64] >> (a % 64) & 1 == 1
    }
}

fn or(to: &mut [u64], from: &[u64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to |= from;
    }
}

fn incoming(program: &Program) -> Vec<Vec<(usize, EdgeKind)>> {
    let mut incoming = vec![Vec::new(); program.nodes.len()];
    for edge in &program.edges {
        incoming[edge.to.0 as usize].push((edge.from.0 as usize, edge.kind));
    }
    incoming
}

/// An order of the nodes along all edges, and a node on a circle if there is one; its circle is left out of the order.
fn topological(program: &Program) -> (Vec<usize>, Option<usize>) {
    let count = program.nodes.len();
    let mut missing = vec![0usize; count];
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); count];
    for edge in &program.edges {
        missing[edge.to.0 as usize] += 1;
        outgoing[edge.from.0 as usize].push(edge.to.0 as usize);
    }
    let mut order: Vec<usize> = (0..count).filter(|&n| missing[n] == 0).collect();
    let mut at = 0;
    while let Some(&node) = order.get(at) {
        for &next in &outgoing[node] {
            missing[next] -= 1;
            if missing[next] == 0 {
                order.push(next);
            }
        }
        at += 1;
    }
    let circle = (0..count).find(|&n| missing[n] > 0);
    (order, circle)
}
