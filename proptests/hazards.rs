//! Published cases of the bug class, each as the smallest program that has it.

use std::ops::Range;

use flashlane::ops::{BufferId, Mode, Op};
use flashlane::step::{
    Edge, EdgeKind, Hazard, Impure, Kind, NodeId, ObjectId, Plan, Program, Rule, Space, Use, fingerprint,
    prove, purity,
};

use crate::random_graph::random_graph;

fn access(object: ObjectId, range: Range<usize>, mode: Mode) -> Use {
    Use { object, range, mode, early: false }
}

fn read(object: ObjectId) -> Use {
    access(object, 0..256, Mode::Read)
}

fn write(object: ObjectId) -> Use {
    access(object, 0..256, Mode::Write)
}

fn value(program: &mut Program, name: &str) -> ObjectId {
    program.object(name, Space::Arena(0), Kind::Made)
}

fn programmatic(program: &mut Program, from: NodeId, to: NodeId) {
    program.edges.push(Edge { from, to, kind: EdgeKind::Programmatic });
}

fn hazards(program: &Program) -> Vec<Hazard> {
    prove(program).unwrap_err()
}

/// G01: main makes X, a side lane reads it, main puts Y over it, before the join or after it.
fn value_over_a_side_lanes_operand(after_the_join: bool) -> Program {
    let mut program = Program::default();
    let (x, y) = (value(&mut program, "x"), value(&mut program, "y"));
    let make = program.node("make", "main", vec![write(x)]);
    let side = program.node("logits", "main/side", vec![read(x)]);
    let over = program.node("store", "main", vec![write(y)]);
    let join = program.node("join", "main", vec![]);
    program.order(make, side);
    if after_the_join {
        [(make, join), (side, join), (join, over)].iter().for_each(|&(a, b)| program.order(a, b));
    } else {
        [(make, over), (side, join), (over, join)].iter().for_each(|&(a, b)| program.order(a, b));
    }
    program
}

#[test]
fn g01_a_value_over_what_a_side_lane_reads() {
    let found = hazards(&value_over_a_side_lanes_operand(false));
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["order: logits reads x while store writes y: the same arena bytes 0..256, and no edge orders them \
          (lanes main/side and main; nearest common ancestor: make)"]
    );
    assert!(prove(&value_over_a_side_lanes_operand(true)).is_ok());
}

#[test]
fn g02_a_programmatic_edge_to_a_kernel_that_never_waits_is_not_order() {
    let mut program = Program::default();
    let x = value(&mut program, "x");
    let p = program.node("p", "main", vec![write(x)]);
    let s = program.node("s", "main", vec![read(x)]);
    programmatic(&mut program, p, s);
    assert!(prove(&program).is_ok());
    program.nodes[s.0 as usize].waits = false;
    // Unordered, and so nothing is known to have been written when it is read.
    let rules: Vec<Rule> = hazards(&program).iter().map(|h| h.rule).collect();
    assert_eq!(rules, [Rule::Order, Rule::Value]);
}

#[test]
fn g03_one_scratch_of_two_unordered_nodes() {
    let mut program = Program::default();
    let scratch = value(&mut program, "scratch");
    let fork = program.node("fork", "main", vec![]);
    let own = || vec![write(scratch), read(scratch)];
    let (a, b) = (program.node("a", "main/a", own()), program.node("b", "main/b", own()));
    program.order(fork, a);
    program.order(fork, b);
    let found = hazards(&program);
    let pair = found.iter().find(|h| h.second.is_some()).unwrap();
    assert_eq!((pair.rule, pair.ancestor.as_deref()), (Rule::Order, Some("fork")));
    program.nodes.remove(b.0 as usize);
    program.edges.pop();
    assert!(prove(&program).is_ok(), "scratch of one node alone is its own business");
}

/// G09: two replays in one arena; the host reads the first one's output, before the second or after.
fn output_in_a_shared_arena(host_reads: bool) -> Program {
    let mut program = Program::default();
    let (out, other) = (value(&mut program, "a.out"), value(&mut program, "b.value"));
    let a = program.node("sample of a", "main", vec![write(out)]);
    let b = program.node("embed of b", "main", vec![write(other)]);
    program.order(a, b);
    if host_reads {
        let host = program.node("host reads", "host", vec![read(out)]);
        program.order(a, host);
    }
    program
}

#[test]
fn g09_an_output_read_after_the_next_graph_has_replayed() {
    let found = hazards(&output_in_a_shared_arena(true));
    assert_eq!((found.len(), found[0].rule), (1, Rule::Order));
    assert!(prove(&output_in_a_shared_arena(false)).is_ok());
}

#[test]
fn g09_ordered_after_the_overwrite_it_is_a_lost_value() {
    let mut program = output_in_a_shared_arena(true);
    program.order(NodeId(1), NodeId(2));
    let found = hazards(&program);
    assert_eq!((found.len(), found[0].rule), (1, Rule::Value));
    assert_eq!(
        found[0].to_string(),
        "value: host reads reads a.out (arena bytes 0..256), but before that embed of b writes b.value over it \
         (lanes host and main; nearest common ancestor: embed of b)"
    );
}

/// Between two launches of one graph the host may change what inputs hold, and nothing of the graph.
#[test]
fn g05_a_buffer_that_is_pointed_elsewhere_between_two_launches() {
    let first = random_graph(1, 30);
    assert_eq!(purity(&first, &first.clone()), Ok(()));
    let mut second = first.clone();
    let norm = second.nodes.iter_mut().find_map(|node| match &mut node.op {
        Op::RmsNorm(op) => Some(op),
        _ => None,
    });
    norm.unwrap().x.buffer = BufferId(1);
    let refused = purity(&first, &second).unwrap_err();
    assert!(matches!(&refused, Impure::Argument { node, .. } if node.starts_with("rmsnorm@")), "{refused}");
    let plan = Plan::shared(&first);
    assert_ne!(fingerprint(&first, &plan), fingerprint(&second, &plan));
}

#[test]
fn g13_waiting_for_a_kernel_that_did_not_wait() {
    let mut program = Program::default();
    let (x, y) = (value(&mut program, "x"), value(&mut program, "y"));
    let make = program.node("make", "main", vec![write(x)]);
    let p = program.node("p", "main", vec![read(x)]);
    let s = program.node("s", "main", vec![]);
    let n = program.node("n", "main", vec![write(y)]);
    program.order(make, p);
    programmatic(&mut program, p, s);
    program.order(s, n);
    assert!(prove(&program).is_ok(), "s waits, so its end is after p's");
    program.nodes[s.0 as usize].waits = false;
    let found = hazards(&program);
    assert_eq!((found.len(), found[0].rule, found[0].first.op.as_str()), (1, Rule::Order, "p"));
}

/// G17: the join node is launched programmatically and reads the side lane's value before its wait.
fn early_reader_at_a_join(kind: EdgeKind) -> Program {
    let mut program = Program::default();
    let x = value(&mut program, "x");
    let fork = program.node("fork", "main", vec![]);
    let side = program.node("side", "main/side", vec![write(x)]);
    let early = Use { early: true, ..read(x) };
    let join = program.node("join", "main", vec![early]);
    program.order(fork, side);
    for from in [fork, side] {
        program.edges.push(Edge { from, to: join, kind });
    }
    program
}

#[test]
fn g17_captured_the_joins_edges_are_programmatic_and_eager_they_are_full() {
    let found = hazards(&early_reader_at_a_join(EdgeKind::Programmatic));
    assert_eq!(found[0].rule, Rule::Order);
    assert!(found[0].to_string().contains("join reads, before its wait, x"), "{}", found[0]);
    assert!(prove(&early_reader_at_a_join(EdgeKind::Full)).is_ok());
}

#[test]
fn early_reads_of_weights_are_legal_and_writes_to_them_are_not() {
    let mut program = Program::default();
    let weight = program.object("wq_b", Space::Weight(flashlane::step::WeightId(3)), Kind::Frozen);
    let before = program.node("before", "main", vec![]);
    let linear = program.node("linear", "main", vec![Use { early: true, ..read(weight) }]);
    programmatic(&mut program, before, linear);
    assert!(prove(&program).is_ok());
    program.nodes[0].uses.push(write(weight));
    let found = hazards(&program);
    assert_eq!(found[0].rule, Rule::Frozen);
    assert!(found.iter().any(|h| h.rule == Rule::Order), "and the early read races with it");
}
