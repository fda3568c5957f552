//! Element-wise arithmetic of the CPU path: exponentials, softmax, norms, rotations. The same operations in the same order
//! with every instruction set.

use super::products::dot_tile;
use super::simd::{LANES, kernel};
use crate::format::{bf16, rope};

const EXP_LOW: f32 = -104.0;
const EXP_HIGH: f32 = 89.0;
/// Adding and subtracting `1.5 * 2^23` rounds to an integer, which stands in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// `ln 2` in two parts, so that its multiples subtract without loss.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `e^x` within 2 units in the last place, by argument reduction and a Taylor polynomial; 0 and infinity beyond the range.
/// Branch-free, so that loops over it vectorise, and the same operations everywhere.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = if x < EXP_LOW { EXP_LOW } else { x };
    let x = if x > EXP_HIGH { EXP_HIGH } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = r.mul_add(1.0 / 5040.0, 1.0 / 720.0);
    let p = p.mul_add(r, 1.0 / 120.0);
    let p = p.mul_add(r, 1.0 / 24.0);
    let p = p.mul_add(r, 1.0 / 6.0);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r, 1.0);
    let p = p.mul_add(r, 1.0);
    // Two factors, since 2^n alone may leave the range of f32 where the product does not.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    p * power(half) * power(n.wrapping_sub(half))
}

/// `2^n` for the exponents of normal numbers.
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

kernel! {
    /// `out = factor * silu(min(gate, limit)) * clamp(up, -limit, limit)`; a limit of 0 is none.
    pub(super) fn swiglu_row<'a>(
        _lanes; gate: &'a [f32], up: &'a [f32], limit: f32, factor: f32, out: &'a mut [f32],
    ) -> () {
        let limit = if limit > 0.0 { limit } else { f32::INFINITY };
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            let g = at_most(*g, limit);
            let silu = g / (1.0 + exp(-g));
            *o = factor * (silu * at_least(at_most(*u, limit), -limit));
        }
    }
}

kernel! {
    /// Rounds to bf16 and back.
    pub(super) fn round_bf16<'a>(_lanes; values: &'a mut [f32]) -> () {
        for v in values {
            *v = bf16::round(*v);
        }
    }
}

/// Minimum that keeps NaN.
#[inline(always)]
fn at_most(x: f32, limit: f32) -> f32 {
    if x > limit { limit } else { x }
}

/// Maximum that keeps NaN.
#[inline(always)]
fn at_least(x: f32, limit: f32) -> f32 {
    if x < limit { limit } else { x }
}

kernel! {
    /// Replaces scores by `exp(score - max)`, `max` the larger of `floor` and the scores; returns `max` and the sum. NaN
    /// scores do not count for the maximum and make the sum NaN.
    pub(super) fn exp_scores<'a>(lanes; scores: &'a mut [f32], scale: f32, floor: f32) -> (f32, f32) {
        for s in scores.iter_mut() {
            *s *= scale;
        }
        let max = maximum(scores, floor);
        let mut sums = [0.0; LANES];
        for chunk in scores.chunks_mut(LANES) {
            if let Ok(chunk) = <&mut [f32; LANES]>::try_from(&mut *chunk) {
                for l in 0..LANES {
                    chunk[l] = exp(chunk[l] - max);
                    sums[l] += chunk[l];
                }
            } else {
                for (s, sum) in chunk.iter_mut().zip(&mut sums) {
                    *s = exp(*s - max);
                    *sum += *s;
                }
            }
        }
        (max, lanes.sum(lanes.load(&sums)))
    }
}

#[inline(always)]
fn maximum(values: &[f32], floor: f32) -> f32 {
    let mut best = [floor; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for l in 0..LANES {
            best[l] = if chunk[l] > best[l] { chunk[l] } else { best[l] };
        }
    }
    best.iter().chain(tail).fold(floor, |m, &v| if v > m { v } else { m })
}

kernel! {
    /// `x * gain / sqrt(mean(x^2) + eps)` in place; no gain: 1.
    pub(super) fn rms_norm<'a>(lanes; x: &'a mut [f32], gain: Option<&'a [f32]>, eps: f32) -> () {
        let [[sum]] = dot_tile(lanes, [&*x], [&*x]);
        let factor = 1.0 / (sum / x.len() as f32 + eps).sqrt();
        match gain {
            Some(gain) => x.iter_mut().zip(gain).for_each(|(v, g)| *v = *v * factor * g),
            None => x.iter_mut().for_each(|v| *v *= factor),
        }
    }
}

kernel! {
    /// `out = own.0 * own.1 + sum_j weights[j * stride] streams[j]`, streams in ascending order.
    pub(super) fn mix_streams<'a>(
        _lanes; streams: &'a [f32], weights: &'a [f32], stride: usize, own: Option<(&'a [f32], f32)>, out: &'a mut [f32],
    ) -> () {
        match own {
            Some((own, factor)) => out.iter_mut().zip(own).for_each(|(o, v)| *o = factor * v),
            None => out.fill(0.0),
        }
        for (stream, weight) in streams.chunks_exact(out.len().max(1)).zip(weights.iter().step_by(stride)) {
            out.iter_mut().zip(stream).for_each(|(o, v)| *o = weight.mul_add(*v, *o));
        }
    }
}

kernel! {
    pub(super) fn scale<'a>(_lanes; values: &'a mut [f32], factor: f32) -> () {
        values.iter_mut().for_each(|v| *v *= factor);
    }
}

kernel! {
    /// Rotates the last 64 elements of a head by one position's cosines and sines.
    pub(super) fn rotate_last<'a>(_lanes; head: &'a mut [f32], cos_sin: &'a [f32; rope::DIMS], inverse: bool) -> () {
        if let Some(last) = head.last_chunk_mut() {
            rope::rotate(last, cos_sin, inverse);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::products::tests::{bits, noise};
    use super::super::products::weighted_sum;
    use super::super::simd::Simd;
    use super::*;

    #[test]
    fn all_instruction_sets_give_the_same_softmax_and_weighted_sum() {
        for heads in 1..=9 {
            let (n, width) = (37, 48);
            let (scores, rows) = (noise(3, heads * n), noise(4, n * width));
            let run = |simd| {
                let (mut p, mut acc) = (scores.clone(), noise(5, heads * width));
                let stats: Vec<_> = p.chunks_mut(n).map(|s| exp_scores(simd, s, 3.0, -1.0)).collect();
                weighted_sum(simd, &p, n, &rows, width, &mut acc);
                let mut normed = acc.clone();
                rms_norm(simd, &mut normed, Some(&noise(6, heads * width)), 1e-6);
                (stats, bits(&p), bits(&acc), bits(&normed))
            };
            let all: Vec<_> = Simd::available().into_iter().map(run).collect();
            assert!(all.iter().all(|r| *r == all[0]), "{heads} heads");
        }
    }

    #[test]
    fn exp_is_within_two_ulp_and_keeps_the_ends() {
        for i in -90_000..=88_000 {
            let x = i as f32 / 1000.0;
            let (ours, exact) = (exp(x), f64::from(x).exp() as f32);
            let ulps = (ours.to_bits() as i32 - exact.to_bits() as i32).abs();
            assert!(ulps <= 2, "exp({x}) = {ours}, not {exact}");
        }
        assert_eq!((exp(f32::NEG_INFINITY), exp(-1000.0), exp(0.0)), (0.0, 0.0, 1.0));
        assert_eq!((exp(f32::INFINITY), exp(100.0)), (f32::INFINITY, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn maximum_is_the_largest_and_ignores_nan() {
        let mut values = noise(7, 53);
        values[20] = f32::NAN;
        values[51] = 5.0;
        assert_eq!(maximum(&values, f32::NEG_INFINITY), 5.0);
        assert_eq!(maximum(&[], -3.0), -3.0);
    }
}
