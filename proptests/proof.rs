//! The proof against a search through every order of events.

use std::collections::HashSet;
use std::ops::Range;

use flashlane::ops::Mode;
use flashlane::step::{Edge, EdgeKind, Kind, NodeId, ObjectId, Program, Random, Rule, Space, Use, prove};

const BYTES: usize = 4;

fn random_range(random: &mut Random) -> Range<usize> {
    let start = random.below(BYTES);
    start..start + 1 + random.below(BYTES - start)
}

/// At most four nodes over four bytes: dense enough to go wrong often, ordered enough to be right often.
fn random_program(random: &mut Random) -> Program {
    let mut program = Program::default();
    let kinds = [Kind::Made, Kind::Made, Kind::Made, Kind::Given, Kind::Given, Kind::Frozen];
    let mut ranges = Vec::new();
    for i in 0..1 + random.below(3) {
        program.object(format!("v{i}"), Space::Arena(0), kinds[random.below(kinds.len())]);
        ranges.push(random_range(random));
    }
    for n in 0..2 + random.below(3) {
        let mut uses = Vec::new();
        for _ in 0..random.below(3) {
            let object = random.below(ranges.len());
            let range = if random.chance(80) { ranges[object].clone() } else { random_range(random) };
            let mode = if random.chance(55) { Mode::Read } else { Mode::Write };
            let early = mode == Mode::Read && random.chance(25);
            uses.push(Use { object: ObjectId(object as u32), range, mode, early });
        }
        let id = program.node(format!("n{n}"), "main", uses);
        program.nodes[id.0 as usize].waits = random.chance(80);
        random_edges(random, &mut program, id);
    }
    program
}

fn random_edges(random: &mut Random, program: &mut Program, to: NodeId) {
    for from in 0..to.0 {
        if random.chance(if from + 1 == to.0 { 75 } else { 25 }) {
            let kind = if random.chance(30) { EdgeKind::Programmatic } else { EdgeKind::Full };
            program.edges.push(Edge { from: NodeId(from), to, kind });
        }
    }
}

/// Which events of a node have happened: bits for begin, wait, trigger, complete.
const BEGUN: u8 = 1;
const WAITED: u8 = 2;
const TRIGGERED: u8 = 4;
const COMPLETE: u8 = 8;

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    events: Vec<u8>,
    /// The object that wrote each byte last.
    memory: [Option<u32>; BYTES],
}

impl State {
    fn active(&self, program: &Program, node: usize, one: &Use) -> bool {
        let events = self.events[node];
        let started = events & WAITED != 0 || (one.early && events & BEGUN != 0);
        let _ = program;
        started && events & COMPLETE == 0
    }

    fn allowed(&self, program: &Program, node: usize, event: u8) -> bool {
        let own = self.events[node];
        let before = match event {
            BEGUN => 0,
            COMPLETE => BEGUN | WAITED | TRIGGERED,
            _ => BEGUN,
        };
        own & event == 0
            && own & before == before
            && program.edges.iter().filter(|e| e.to.0 as usize == node).all(|e| {
                let from = self.events[e.from.0 as usize];
                match (event, e.kind) {
                    (BEGUN, EdgeKind::Full) => from & COMPLETE != 0,
                    (BEGUN, EdgeKind::Programmatic) => from & TRIGGERED != 0,
                    (WAITED, EdgeKind::Programmatic) => from & COMPLETE != 0 || !program.nodes[node].waits,
                    _ => true,
                }
            })
    }

    /// Lets an event happen; writes land with completion.
    fn after(&self, program: &Program, node: usize, event: u8) -> Self {
        let mut next = self.clone();
        next.events[node] |= event;
        if event == COMPLETE {
            for one in program.nodes[node].uses.iter().filter(|u| u.mode == Mode::Write) {
                next.memory[one.range.clone()].fill(Some(one.object.0));
            }
        }
        next
    }

    fn bad(&self, program: &Program) -> bool {
        let all = program.nodes.iter().enumerate().flat_map(|(n, a)| a.uses.iter().map(move |u| (n, u)));
        let active: Vec<_> = all.filter(|(n, u)| self.active(program, *n, u)).collect();
        active.iter().any(|&(n, a)| self.bad_read(program, n, a) || frozen_write(program, a))
            || active.iter().enumerate().any(|(i, &(n, a))| {
                active[i + 1..]
                    .iter()
                    .any(|&(m, b)| clash(a, b) && !(n == m && own_scratch(program, n, a, b)))
            })
    }

    fn bad_read(&self, program: &Program, node: usize, one: &Use) -> bool {
        let kind = program.objects[one.object.0 as usize].kind;
        let own = |byte: usize| {
            let writes = |u: &Use| u.object == one.object && u.mode == Mode::Write && u.range.contains(&byte);
            program.nodes[node].uses.iter().any(writes) && used_by(program, one.object) == [node]
        };
        one.mode == Mode::Read
            && one.range.clone().any(|byte| match self.memory[byte] {
                Some(writer) => writer != one.object.0 && !own(byte),
                None => kind == Kind::Made && !own(byte),
            })
    }
}

fn frozen_write(program: &Program, one: &Use) -> bool {
    one.mode == Mode::Write && program.objects[one.object.0 as usize].kind == Kind::Frozen
}

fn clash(a: &Use, b: &Use) -> bool {
    (a.mode == Mode::Write || b.mode == Mode::Write)
        && a.range.start.max(b.range.start) < a.range.end.min(b.range.end)
}

fn used_by(program: &Program, object: ObjectId) -> Vec<usize> {
    let uses = |n: &usize| program.nodes[*n].uses.iter().any(|u| u.object == object);
    (0..program.nodes.len()).filter(uses).collect()
}

/// A node may write one value twice, and read what it writes if no one else uses that.
fn own_scratch(program: &Program, node: usize, a: &Use, b: &Use) -> bool {
    a.object == b.object && (a.mode == b.mode || used_by(program, a.object) == [node])
}

/// Whether any order of events reaches a state in which something is wrong.
fn can_go_wrong(program: &Program) -> bool {
    let start = State { events: vec![0; program.nodes.len()], memory: [None; BYTES] };
    let mut seen = HashSet::new();
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        if state.bad(program) {
            return true;
        }
        for node in 0..program.nodes.len() {
            for event in [BEGUN, WAITED, TRIGGERED, COMPLETE] {
                if state.allowed(program, node, event) {
                    let next = state.after(program, node, event);
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
        }
    }
    false
}

#[test]
fn agrees_with_a_search_through_all_orders_of_events() {
    let mut proved = 0;
    for seed in 0..100_000 {
        let program = random_program(&mut Random::new(seed));
        let verdict = prove(&program);
        assert_eq!(verdict.is_err(), can_go_wrong(&program), "seed {seed}: {verdict:?}\n{program:#?}");
        proved += usize::from(verdict.is_ok());
    }
    assert!((20_000..80_000).contains(&proved), "{proved} of 100,000 proved: too one-sided to test much");
}

#[test]
fn one_more_edge_never_makes_a_hazard() {
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let mut program = random_program(&mut random);
        if prove(&program).is_err() {
            continue;
        }
        let to = 1 + random.below(program.nodes.len() - 1);
        let from = NodeId(random.below(to) as u32);
        program.edges.push(Edge { from, to: NodeId(to as u32), kind: EdgeKind::Full });
        assert!(prove(&program).is_ok(), "seed {seed}: {program:#?}");
    }
}

#[test]
fn a_circle_is_refused() {
    let mut program = Program::default();
    let (a, b) = (program.node("a", "main", vec![]), program.node("b", "main", vec![]));
    program.order(a, b);
    program.order(b, a);
    let hazards = prove(&program).unwrap_err();
    assert_eq!(hazards.len(), 1);
    assert_eq!(hazards[0].rule, Rule::Acyclic);
    assert_eq!(hazards[0].to_string(), "acyclic: a waits, by way of others, for itself");
}
