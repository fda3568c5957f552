//! Pictures of the step that was checked, with its hazards.

use flashlane::step::{self, Graph, Hazard, NodeId, Party};

use super::check::Checked;

pub(super) fn svg(checked: &Checked) -> String {
    step::svg(&checked.case.graph, &checked.case.plan, &drawn(checked))
}

pub(super) fn dot(checked: &Checked) -> String {
    step::dot(&checked.case.graph, &drawn(checked))
}

/// Hazards as the picture of one step can show them: of those between steps, each side by itself.
fn drawn(checked: &Checked) -> Vec<Hazard> {
    let graph = &checked.case.graph;
    let step = checked.step.as_ref().err().into_iter().flatten().cloned();
    let loops = checked.loops.iter().filter_map(|l| l.result.as_ref().err()).flatten();
    let sides = loops.flat_map(|h| {
        let parties = [Some(&h.first), h.second.as_ref()].into_iter().flatten();
        parties.filter_map(|p| Some(Hazard { first: within(graph, p)?, second: None, ..h.clone() }))
    });
    step.chain(sides).collect()
}

/// A party of the loop as a party of this step, if it is a node of one.
fn within(graph: &Graph, party: &Party) -> Option<Party> {
    let (label, _) = party.op.split_once(" of step ")?;
    let node: NodeId = graph.node_ids().find(|id| graph.label(*id) == label)?;
    let object = party.object.split(" of step ").next().unwrap_or_default().to_owned();
    Some(Party { node, object, op: label.to_owned(), ..party.clone() })
}
