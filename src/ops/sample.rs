//! `sample`: the next token of each row.

use super::{Access, Value};

/// Greedy where `temperature` is 0 (ties to the smaller id). Otherwise softmax of `logits / temperature`; kept are the
/// `top_k` most likely (0: all), of those the smallest set whose mass reaches `top_p` (at least one), of those the ones
/// at least `min_p` times as likely as the best; the draw is a counter-based uniform number of `(seed, position)` walked
/// through the kept ids in ascending order. A row with a NaN, with +inf, or all -inf has status 1 and token -1; a row
/// with position -1 has status 2 and token -1; else status 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// f32 `[samples, vocab]`.
    pub logits: Value,
    /// f32 `[samples]`.
    pub temperature: Value,
    /// f32 `[samples]`.
    pub top_p: Value,
    /// f32 `[samples]`.
    pub min_p: Value,
    /// i32 `[samples]`.
    pub top_k: Value,
    /// u64 `[samples]`.
    pub seed: Value,
    /// i32 `[samples]`: the position that the new token will have.
    pub position: Value,
    /// i32 `[samples]`.
    pub token: Value,
    /// i32 `[samples]`.
    pub status: Value,
    pub samples: usize,
    pub vocab: usize,
}

impl Sample {
    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.logits.read(),
            self.temperature.read(),
            self.top_p.read(),
            self.min_p.read(),
            self.top_k.read(),
            self.seed.read(),
            self.position.read(),
            self.token.write(),
            self.status.write(),
        ]
    }
}
