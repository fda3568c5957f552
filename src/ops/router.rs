//! `router`: which experts a token goes to, and with what weight.

use super::{Access, Tokens, Value};

/// How experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// The `k` largest of `score + bias` (f32 weight `[experts]`); ties to the smaller id, NaN below every number.
    Scored { bias: Value },
    /// Row `token[t]` of a table, i32 weight `[vocab, k]`; ids may repeat.
    Hash { table: Value, token: Value, vocab: usize },
}

/// `score = sqrt(softplus(logit))` (softplus linear above 20); weight of a chosen expert: `factor score / sum of the
/// chosen scores`. Experts are written in ascending id. An invalid token, table entry or padded row gives id -1 and
/// weight 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    pub tokens: Tokens,
    /// f32 `[T, experts]`.
    pub logits: Value,
    pub routing: Routing,
    /// i32 `[T, k]`.
    pub ids: Value,
    /// f32 `[T, k]`.
    pub weights: Value,
    pub experts: usize,
    pub k: usize,
    pub factor: f32,
}

impl Router {
    pub(super) fn regions(&self) -> Vec<Access> {
        let mut all = vec![self.tokens.position.read(), self.logits.read()];
        match &self.routing {
            Routing::Scored { bias } => all.push(bias.read()),
            Routing::Hash { table, token, .. } => all.extend([table.read(), token.read()]),
        }
        all.extend([self.ids.write(), self.weights.write()]);
        all
    }
}
