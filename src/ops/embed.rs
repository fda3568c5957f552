//! `embed`: token ids to residual streams.

use super::{Access, Tokens, Value};

/// Copies the embedding of each token into all `streams` residual streams: `out[t, j, :] = weight[token[t], :]`.
/// A token outside `0..vocab`, or a padded row, gives zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    pub tokens: Tokens,
    /// i32 `[T]`.
    pub token: Value,
    /// bf16 or f32 weight `[vocab, hidden]`.
    pub weight: Value,
    /// Activation `[T, streams, hidden]`.
    pub out: Value,
    pub vocab: usize,
    pub hidden: usize,
    pub streams: usize,
}

impl Embed {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![self.tokens.position.read(), self.token.read(), self.weight.read(), self.out.write()]
    }
}
