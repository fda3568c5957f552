#![doc = "Property tests, a module per operation and one each for plan, proof and the like."]

mod any_order;
mod hazards;
mod mutants;
mod plan;
mod proof;
mod random_graph;
