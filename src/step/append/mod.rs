//! The operations as methods of a lane: each checks its shapes, makes its output and appends one launch.

mod attention;
mod dense;
mod experts;

use std::panic::Location;

pub use attention::{Compact, CompressWeights, IndexHeads};
pub use dense::{Mixed, SampleParams};
pub use experts::{RouteBy, Routed};

use super::builder::Inner;
use super::graph::Class;
use super::handles::Weight;
use crate::ops::{BufferId, Dtype, Tokens, Value};

/// Hyper-connection weights of one sublayer (or of the head).
#[derive(Clone, Debug, PartialEq)]
pub struct HyperWeights {
    pub mix: Weight,
    pub base: Weight,
    pub scale: Weight,
    pub streams: usize,
    pub sinkhorn_iters: usize,
    pub eps: f32,
    pub hc_eps: f32,
}

/// A norm's gain and epsilon.
#[derive(Clone, Debug, PartialEq)]
pub struct NormWeights {
    pub gain: Weight,
    pub eps: f32,
}

/// The name of what a weight makes: `layers.0.attn.wkv.out` for `layers.0.attn.wkv.weight`.
fn result_of(weight: &Weight) -> String {
    format!("{}.out", weight.name.trim_end_matches(".weight"))
}

impl Inner {
    fn transient(&mut self, name: &str, dtype: Dtype, rows: usize, cols: usize) -> Value {
        let index = self.graph.nodes.len();
        self.value(format!("{name}#{index}"), Class::Transient, dtype, rows, cols)
    }

    fn same(&mut self, at: &Location<'_>, what: &str, expected: usize, found: usize) {
        if expected != found {
            self.fail(at, format!("{what}: expected {expected}, found {found}"));
        }
    }

    fn tokens(&mut self, at: &Location<'_>) -> Tokens {
        self.tokens.unwrap_or_else(|| {
            self.fail(at, "operations come after Root::tokens".to_owned());
            let position = Value { buffer: BufferId(u32::MAX), dtype: Dtype::I32, len: 0 };
            Tokens { requests: 0, per_request: 0, position }
        })
    }
}
