//! A decode step value by value.

use std::collections::BTreeMap;
use std::fmt;

use flashlane::ops::{Dtype, Mode, Op, Part, Value};
use flashlane::step::{Class, Graph, Node};
use half::bf16;

use crate::bound::{ROW_SPREAD, SPREAD, index_sigma, sigma};
use crate::judge::row;
use crate::pair::{Ran, Step};

/// Values compared, of rows and nodes.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) values: usize,
    /// Those before any choice of their row that differs.
    pub(crate) held: usize,
    /// The largest relative difference over its bound, by operation.
    worst: BTreeMap<&'static str, f64>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} values held; differences over their bounds:", self.held, self.values)?;
        self.worst.iter().try_for_each(|(op, worst)| write!(f, " {op} {worst:.3}"))
    }
}

impl Found {
    /// Holds every value of `rows` sessions to `sigma` of the layers so far, in the order of nodes; a row is let go where it is
    /// chosen for differently. Choices are judged by their gaps elsewhere.
    pub(crate) fn compare(&mut self, step: &Step, ran: &Ran, rows: usize) {
        let (graph, mut parted, mut layers) = (&step.model.graph, vec![false; rows], 1);
        for node in &graph.nodes {
            for value in written(graph, node) {
                for (at, parted) in parted.iter_mut().enumerate() {
                    let width = value.len / rows;
                    let slice = at * width..(at + 1) * width;
                    if value.dtype == Dtype::I32 {
                        let chosen = |memory| row::<i32>(graph, &step.plan, memory, &value, slice.clone());
                        *parted |= chosen(&ran.cpu) != chosen(&ran.other);
                        continue;
                    }
                    self.values += 1;
                    if *parted {
                        continue;
                    }
                    let floats = |memory| floats(step, memory, &value, slice.clone());
                    let bound = match node.op {
                        Op::IndexLogits(_) => SPREAD * index_sigma(layers - 1),
                        _ => ROW_SPREAD * sigma(layers),
                    };
                    let found = distance(&floats(&ran.cpu), &floats(&ran.other)) / bound;
                    let name = &graph.buffer(value.buffer).name;
                    assert!(
                        found <= 1.0,
                        "{} of {}: {name}, row {at}: {found} of its bound",
                        node.op.name(),
                        node.scope
                    );
                    self.held += 1;
                    let worst = self.worst.entry(node.op.name()).or_default();
                    *worst = worst.max(found);
                }
            }
            layers += usize::from(matches!(node.op, Op::Router(_)));
        }
    }
}

/// Whole arrays of numbers that a node writes.
fn written(graph: &Graph, node: &Node) -> Vec<Value> {
    let regions = node.op.regions().into_iter().filter(|access| access.mode == Mode::Write);
    let value = |access: flashlane::ops::Access| {
        let (buffer, Part::Bytes(bytes)) = (access.region.buffer, access.region.part) else { return None };
        let of = graph.buffer(buffer);
        let plain = matches!(of.class, Class::Transient | Class::Output) && of.dtype != Dtype::U8;
        plain.then(|| Value { buffer, dtype: of.dtype, len: bytes.len() / of.dtype.size() })
    };
    regions.filter_map(value).collect()
}

fn floats(
    step: &Step,
    memory: &flashlane::step::Memory,
    value: &Value,
    slice: std::ops::Range<usize>,
) -> Vec<f64> {
    let (graph, plan) = (&step.model.graph, &step.plan);
    match value.dtype {
        Dtype::Bf16 => row::<bf16>(graph, plan, memory, value, slice).iter().map(|v| v.to_f64()).collect(),
        _ => row::<f32>(graph, plan, memory, value, slice).iter().map(|v| f64::from(*v)).collect(),
    }
}

/// The norm of the difference over the norm.
fn distance(ours: &[f64], theirs: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let apart = norm(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    if apart == 0.0 { 0.0 } else { apart / norm(&mut ours.iter().copied()) }
}
