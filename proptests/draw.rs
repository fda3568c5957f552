//! Pictures of the model's step: well-formed, folded, and red where a hazard is.

use flashlane::checkpoint::presets::flash;
use flashlane::checkpoint::synthetic::tiny_config;
use flashlane::format::index_row::IndexFormat;
use flashlane::model::StepShape;
use flashlane::step::{Hazard, Mutant, Plan, Program, dot, prove, svg};

use crate::model_step::step;

/// Every opened element is closed, in order.
fn well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in text.split('<').skip(1).filter_map(|t| t.split('>').next()) {
        let name = tag.split([' ', '/']).find(|n| !n.is_empty()).unwrap();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, false) => open.push(name),
            (false, true) => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn repeated_layers_are_folded() {
    let step = step(&flash(), IndexFormat::Bf16, StepShape::decode(4, 4096));
    let text = svg(&step.graph, &Plan::shared(&step.graph), &[]);
    well_formed(&text);
    let drawn = text.matches("text-anchor").count();
    assert!(drawn * 5 < step.graph.nodes.len(), "{drawn} of {} nodes drawn", step.graph.nodes.len());
    assert!(text.contains("(+19 alike)") && !text.contains("#d00"), "20 layers of ratio 128, one drawn");
}

#[test]
fn the_nodes_of_a_hazard_are_drawn_red() {
    let step = step(&flash(), IndexFormat::Bf16, StepShape::decode(4, 4096));
    let mutated = Mutant::DroppedJoin.apply(&step.graph, &Plan::shared(&step.graph)).unwrap();
    let hazards: Vec<Hazard> = prove(&Program::of(&mutated.graph, &mutated.plan)).unwrap_err();
    let text = svg(&mutated.graph, &mutated.plan, &hazards);
    well_formed(&text);
    let red = text.matches("stroke-width=\"3\"").count();
    assert_eq!(red, hazards.iter().filter(|h| h.second.is_some()).count());
    assert!(text.contains("nearest common ancestor"));
}

#[test]
fn dot_has_every_node_and_edge() {
    let step = step(&tiny_config(), IndexFormat::F32, StepShape::decode(2, 1024));
    let text = dot(&step.graph, &[]);
    assert_eq!(text.matches(" -> ").count(), step.graph.edges.len());
    assert_eq!(text.matches(" [label=").count(), step.graph.nodes.len());
}
