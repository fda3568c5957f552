//! Whole steps: nodes in append order over one arena, each reading what the one before it wrote.

use flashlane::ops::{Epilogue, Linear, Op, RmsNorm};
use flashlane::reference;

use crate::support::{Case, Dtype, Stored, Value};

/// `rmsnorm(x weight^T)`, two rows.
fn chain() -> (Case, Value) {
    let mut case = Case::new();
    let x = case.real("x", Dtype::F32, &[1.0, 0.0, 0.0, 1.0]);
    let weight = case.weight("weight", 2, 2, Stored::F32(vec![3.0, 1.0, 4.0, -1.0]));
    let product = case.out("product", Dtype::F32, 4);
    let op = Linear {
        x,
        weight,
        out: product,
        rows: 2,
        cols_in: 2,
        weight_rows: 2,
        groups: 1,
        epilogue: Epilogue::None,
    };
    case.op(Op::Linear(op));
    let gain = case.vector("gain", &[1.0, 2.0]);
    let out = case.out("out", Dtype::F32, 4);
    case.op(Op::RmsNorm(RmsNorm { x: product, weight: gain, out, rows: 2, width: 2, eps: 0.0 }));
    (case, out)
}

#[test]
fn a_node_reads_what_the_one_before_it_wrote() {
    let (case, out) = chain();
    // Rows (3, 4) and (1, -1): roots 12.5^0.5 and 1.
    let want = [3.0 / 12.5f64.sqrt(), 8.0 / 12.5f64.sqrt(), 1.0, -2.0];
    for found in case.run().all {
        let got = found.real(&out);
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{}: {got:?}", found.executor);
    }
}

#[test]
fn a_wrong_graph_is_an_error_with_a_name_in_it() {
    let run = |case: &Case| {
        let (mut memory, mut resident) = case.memory(0);
        let mut weights = reference::Weights::new();
        for (id, weight) in &case.weights {
            weights.insert_f32(*id, &weight.values().unwrap());
        }
        reference::run_step(&case.graph, &case.plan, &mut memory, &mut resident, &weights).unwrap_err()
    };
    let (mut narrow, _) = chain();
    let Op::RmsNorm(op) = &mut narrow.graph.nodes[1].op else { panic!("the second node is the norm") };
    op.width = 3;
    assert_eq!(run(&narrow).to_string(), "rmsnorm: x has 4 elements, expected 6");

    let (mut missing, _) = chain();
    missing.weights.pop();
    assert!(run(&missing).to_string().starts_with("rmsnorm: weight weight is not registered"));
}
