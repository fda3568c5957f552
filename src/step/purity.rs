//! The purity check: a step depends on its bucket alone. Built twice under different requests it is the same graph with the
//! same arguments, so nothing that the host knew while capturing can be wrong when replayed.

use std::fmt::Debug;

use super::graph::Graph;
use super::plan::Plan;

/// Two builds of one bucket differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impure {
    #[error("a request decides how many {what} the step has: {first} in one build, {second} in another")]
    Count { what: &'static str, first: usize, second: usize },
    #[error("a request decides an argument of {node}: {first} in one build, {second} in another")]
    Argument { node: String, first: String, second: String },
    #[error("a request decides {what} {index}: {first} in one build, {second} in another")]
    Part { what: &'static str, index: usize, first: String, second: String },
}

/// Compares builds of one bucket under different requests.
///
/// # Errors
/// The first difference, in words.
pub fn purity(first: &Graph, second: &Graph) -> Result<(), Impure> {
    let operations = first.nodes.iter().map(|n| &n.op).zip(second.nodes.iter().map(|n| &n.op));
    if let Some(id) = first.node_ids().zip(operations).find_map(|(id, (a, b))| (a != b).then_some(id)) {
        let texts = [first, second].map(|g| format!("{:?}", g.node(id).op));
        let [first_text, second_text] = difference(&texts);
        return Err(Impure::Argument { node: first.label(id), first: first_text, second: second_text });
    }
    part("node", &first.nodes, &second.nodes)?;
    part("buffer", &first.buffers, &second.buffers)?;
    part("lane", &first.lanes, &second.lanes)?;
    part("edge", &first.edges, &second.edges)
}

fn part<V: PartialEq + Debug>(what: &'static str, first: &[V], second: &[V]) -> Result<(), Impure> {
    if let Some(index) = first.iter().zip(second).position(|(a, b)| a != b) {
        let [first, second] = difference(&[&first[index], &second[index]].map(|v| format!("{v:?}")));
        return Err(Impure::Part { what, index, first, second });
    }
    let (first, second) = (first.len(), second.len());
    if first == second { Ok(()) } else { Err(Impure::Count { what, first, second }) }
}

/// The field that differs first, with its value, out of two debug texts of one shape.
fn difference(texts: &[String; 2]) -> [String; 2] {
    let common = texts[0].bytes().zip(texts[1].bytes()).take_while(|(a, b)| a == b).count();
    let field = |text: &str| {
        let common = (0..=common).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let start = text[..common].rfind([',', '{', '(', '[']).map_or(0, |at| at + 1);
        let end = text[common..].find([',', '}', ')', ']']).map_or(text.len(), |at| common + at);
        text[start..end].trim().to_owned()
    };
    [field(&texts[0]), field(&texts[1])]
}

/// A number that changes with anything that a replay depends on: operations and their arguments, edges, and offsets.
#[must_use]
pub fn fingerprint(graph: &Graph, plan: &Plan) -> u64 {
    let text = format!("{graph:?}{plan:?}");
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
