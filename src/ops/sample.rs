//! `sample`: the next token of each row.

use super::{Access, Carry, Mode, Value};

/// Greedy where `temperature` is 0 (ties to the smaller id). Otherwise softmax of `logits / temperature`; kept are the
/// `top_k` most likely (0: all), of those the smallest set whose mass reaches `top_p` (at least one), of those the ones
/// at least `min_p` times as likely as the best; the draw is a counter-based uniform number of `(seed, position)` walked
/// through the kept ids in ascending order. A row with a NaN, with +inf, or all -inf has status 1 and token -1; a row
/// with position -1 has status 2 and token -1; else status 0. The token of a row with a position, -1 too, goes to the carry
/// of its request as well; rows of one request have positions of different parity.
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
    /// Sample `s` is of request `s / per_request`.
    pub carry: Carry,
    pub per_request: usize,
    pub samples: usize,
    pub vocab: usize,
}

/// The uniform number in `[0, 1)` that a draw uses: 24 bits of a counter-based hash, so that it depends on nothing else.
#[must_use]
pub const fn sample_uniform(seed: u64, position: u32) -> f32 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = mix(mix(seed.wrapping_add(GOLDEN)) ^ (position as u64 + 1).wrapping_mul(GOLDEN));
    (hash >> 40) as f32 / (1u32 << 24) as f32
}

/// A bijection of 64 bits in which every input bit reaches every output bit: the finaliser of SplitMix64.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Sample {
    /// The request of a sample.
    #[must_use]
    pub const fn request(&self, sample: usize) -> usize {
        match sample.checked_div(self.per_request) {
            Some(request) => request,
            None => 0,
        }
    }

    /// Requests that samples are of.
    #[must_use]
    pub const fn requests(&self) -> usize {
        if self.samples == 0 { 0 } else { self.request(self.samples - 1) + 1 }
    }

    pub(super) fn regions(&self) -> Vec<Access> {
        vec![
            self.logits.read(),
            self.temperature.read(),
            self.top_p.read(),
            self.min_p.read(),
            self.top_k.read(),
            self.seed.read(),
            self.position.read(),
            self.carry.slot.read(),
            self.token.write(),
            self.status.write(),
            Access::tail(self.carry.state, Mode::Write),
        ]
    }
}
