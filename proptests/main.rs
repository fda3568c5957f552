#![doc = "Property tests, a module per operation and one each for plan, proof and the like."]

mod hazards;
mod plan;
mod proof;
mod random_graph;
