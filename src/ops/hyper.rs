//! `hyper`: manifold-constrained hyper-connections (model.md 2.2), each half with the RMS norm that always follows it.

use super::{Access, Tokens, Value};

/// Sinkhorn iterations of every published checkpoint.
pub const SINKHORN_DEFAULT: usize = 20;

/// Before a sublayer: mixes the streams into its input and prepares the way back.
///
/// `z = flatten(streams[t])`, `mix = (fn . z) / sqrt(mean(z^2) + eps)`; `pre`, `post` and `comb` as model.md 2.2;
/// `x = round(sum_j pre_j streams[t, j])`, `out = x / sqrt(mean(x^2) + eps) * norm`. f32 throughout but for the two
/// roundings to the activation type.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperPre {
    pub tokens: Tokens,
    /// Activation `[T, n, hidden]`.
    pub streams: Value,
    /// f32 weight `[(2 + n) n, n hidden]`.
    pub mix: Value,
    /// f32 weight `[(2 + n) n]`.
    pub base: Value,
    /// f32 weight `[3]`.
    pub scale: Value,
    /// Weight `[hidden]`.
    pub norm: Value,
    /// Activation `[T, hidden]`.
    pub out: Value,
    /// f32 `[T, n]`.
    pub post: Value,
    /// f32 `[T, n, n]`: source stream first, destination second.
    pub comb: Value,
    pub n: usize,
    pub hidden: usize,
    pub sinkhorn_iters: usize,
    pub eps: f32,
    pub hc_eps: f32,
}

impl HyperPre {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.tokens.position.read(),
            self.streams.read(),
            self.mix.read(),
            self.base.read(),
            self.scale.read(),
            self.norm.read(),
            self.out.write(),
            self.post.write(),
            self.comb.write(),
        ]
    }
}

/// After a sublayer: `out[t, k] = post[t, k] y[t] + sum_j comb[t, j, k] streams[t, j]`.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperPost {
    pub tokens: Tokens,
    /// Activation `[T, n, hidden]`.
    pub streams: Value,
    /// Activation `[T, hidden]`: the sublayer's output.
    pub y: Value,
    /// f32 `[T, n]`.
    pub post: Value,
    /// f32 `[T, n, n]`.
    pub comb: Value,
    /// Activation `[T, n, hidden]`; never the buffer of `streams`.
    pub out: Value,
    pub n: usize,
    pub hidden: usize,
}

impl HyperPost {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.tokens.position.read(),
            self.streams.read(),
            self.y.read(),
            self.post.read(),
            self.comb.read(),
            self.out.write(),
        ]
    }
}

/// After the last layer: mixes the streams of chosen rows (`pre` only) and applies the final norm.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperHead {
    pub tokens: Tokens,
    /// Activation `[T, n, hidden]`.
    pub streams: Value,
    /// i32 `[samples]`: the token row of each output row; -1 gives a row of zeros.
    pub rows: Value,
    /// f32 weight `[n, n hidden]`.
    pub mix: Value,
    /// f32 weight `[n]`.
    pub base: Value,
    /// f32 weight `[1]`.
    pub scale: Value,
    /// Weight `[hidden]`.
    pub norm: Value,
    /// Activation `[samples, hidden]`.
    pub out: Value,
    pub samples: usize,
    pub n: usize,
    pub hidden: usize,
    pub eps: f32,
    pub hc_eps: f32,
}

impl HyperHead {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.streams.read(),
            self.rows.read(),
            self.mix.read(),
            self.base.read(),
            self.scale.read(),
            self.norm.read(),
            self.out.write(),
        ]
    }
}
