//! `embed`: token ids to residual streams.

use super::{Access, Carry, Tokens, Value};

/// Finds the token of each row and copies its embedding into all `streams` residual streams:
/// `out[t, j, :] = weight[ids[t], :]`. `ids[t]` is `token[t]`, or where that is [`Embed::CARRIED`] the token that the carry
/// holds for the row's position. A padded row, a slot outside the carry, or a token outside `0..vocab` gives id -1 and zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    pub tokens: Tokens,
    /// i32 `[T]`.
    pub token: Value,
    pub carry: Carry,
    /// bf16 or f32 weight `[vocab, hidden]`.
    pub weight: Value,
    /// Activation `[T, streams, hidden]`.
    pub out: Value,
    /// i32 `[T]`.
    pub ids: Value,
    pub vocab: usize,
    pub hidden: usize,
    pub streams: usize,
}

impl Embed {
    /// In place of a token: the one that the last step sampled for this request.
    pub const CARRIED: i32 = -1;

    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.tokens.position.read(),
            self.token.read(),
            self.carry.slot.read(),
            Access::settled(self.carry.state),
            self.weight.read(),
            self.out.write(),
            self.ids.write(),
        ]
    }
}
