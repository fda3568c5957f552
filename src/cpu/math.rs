//! The vector arithmetic of the CPU path: dot products, weighted sums, exponentials.
//!
//! Reductions go over sixteen lanes in the order that [`super::simd`] fixes; what is not reduced may be tiled at will, since
//! no element's own sequence of operations depends on its tile.

use super::simd::{LANES, Lanes, Simd, kernel};
use crate::format::{bf16, rope};

/// Where the results of [`matmul`] go: element `(i, j)` at `i * w + j * x`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    pub w: usize,
    pub x: usize,
}

kernel! {
    /// `out[i, j] = w_i . x_j` for the rows `w_i` of `w` (dense, `k` wide) and `count` rows `x_j` at multiples of
    /// `x_stride`. Each product is one canonical sum.
    pub(super) fn matmul<'a>(
        lanes; w: &'a [f32], x: &'a [f32], k: usize, x_stride: usize, count: usize, out: &'a mut [f32], to: Strides,
    ) -> () {
        if k == 0 {
            return;
        }
        let rows = w.len() / k;
        let mut j = 0;
        while j < count {
            let n = if L::TILE == 4 && j + 4 <= count { 4 } else if j + 2 <= count { 2 } else { 1 };
            let x = &x[j * x_stride..];
            let out = &mut out[j * to.x..];
            match n {
                4 => columns::<L, 4, 4>(lanes, w, x, k, x_stride, rows, out, to),
                2 if L::TILE == 4 => columns::<L, 4, 2>(lanes, w, x, k, x_stride, rows, out, to),
                2 => columns::<L, 2, 2>(lanes, w, x, k, x_stride, rows, out, to),
                _ if L::TILE == 4 => columns::<L, 8, 1>(lanes, w, x, k, x_stride, rows, out, to),
                _ => columns::<L, 4, 1>(lanes, w, x, k, x_stride, rows, out, to),
            }
            j += n;
        }
    }
}

/// All rows of `w` against the first `A` rows of `x`, `W` rows at a time.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "an inner loop")]
fn columns<L: Lanes, const W: usize, const A: usize>(
    lanes: L,
    w: &[f32],
    x: &[f32],
    k: usize,
    x_stride: usize,
    rows: usize,
    out: &mut [f32],
    to: Strides,
) {
    let xs: [&[f32]; A] = std::array::from_fn(|j| &x[j * x_stride..j * x_stride + k]);
    let mut i = 0;
    while i + W <= rows {
        let ws: [&[f32]; W] = std::array::from_fn(|r| &w[(i + r) * k..(i + r + 1) * k]);
        let tile = dot_tile(lanes, ws, xs);
        for (r, sums) in tile.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                out[(i + r) * to.w + j * to.x] = *sum;
            }
        }
        i += W;
    }
    while i < rows {
        let tile = dot_tile(lanes, [&w[i * k..(i + 1) * k]], xs);
        for (j, sum) in tile[0].iter().enumerate() {
            out[i * to.w + j * to.x] = *sum;
        }
        i += 1;
    }
}

/// Dot products of each `w` with each `x`, all of one length. A last, incomplete chunk is filled up with zeros.
#[inline(always)]
fn dot_tile<L: Lanes, const W: usize, const A: usize>(
    lanes: L,
    w: [&[f32]; W],
    x: [&[f32]; A],
) -> [[f32; A]; W] {
    let len = x[0].len();
    let chunks = len / LANES;
    let wc: [&[[f32; LANES]]; W] = std::array::from_fn(|i| &w[i][..len].as_chunks().0[..chunks]);
    let xc: [&[[f32; LANES]]; A] = std::array::from_fn(|j| &x[j][..len].as_chunks().0[..chunks]);
    let mut acc = [[lanes.splat(0.0); A]; W];
    for c in 0..chunks {
        let xv: [L::V; A] = std::array::from_fn(|j| lanes.load(&xc[j][c]));
        for i in 0..W {
            let wv = lanes.load(&wc[i][c]);
            for j in 0..A {
                acc[i][j] = lanes.fma(wv, xv[j], acc[i][j]);
            }
        }
    }
    if len > chunks * LANES {
        let xv: [L::V; A] = std::array::from_fn(|j| lanes.load(&padded(&x[j][chunks * LANES..])));
        for i in 0..W {
            let wv = lanes.load(&padded(&w[i][chunks * LANES..]));
            for j in 0..A {
                acc[i][j] = lanes.fma(wv, xv[j], acc[i][j]);
            }
        }
    }
    std::array::from_fn(|i| std::array::from_fn(|j| lanes.sum(acc[i][j])))
}

#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut all = [0.0; LANES];
    for (a, t) in all.iter_mut().zip(tail) {
        *a = *t;
    }
    all
}

/// The canonical dot product.
pub(super) fn dot(simd: Simd, a: &[f32], b: &[f32]) -> f32 {
    let mut out = [0.0];
    matmul(simd, a, b, a.len(), b.len(), 1, &mut out, Strides { w: 1, x: 1 });
    out[0]
}

kernel! {
    /// `acc[h, :] += sum_r p[h, r] rows[r, :]`, rows in ascending order; `p` has `p_stride` columns, `rows` and `acc` are
    /// `width` wide, a multiple of 16.
    pub(super) fn weighted_sum<'a>(
        lanes; p: &'a [f32], p_stride: usize, rows: &'a [f32], width: usize, acc: &'a mut [f32],
    ) -> () {
        let heads = acc.len() / width;
        let mut h = 0;
        while h < heads {
            let acc = &mut acc[h * width..];
            let p = &p[h * p_stride..];
            let n = if h + 4 <= heads { 4 } else if h + 2 <= heads { 2 } else { 1 };
            match n {
                4 => weighted_heads::<L, 4>(lanes, p, p_stride, rows, width, acc),
                2 => weighted_heads::<L, 2>(lanes, p, p_stride, rows, width, acc),
                _ => weighted_heads::<L, 1>(lanes, p, p_stride, rows, width, acc),
            }
            h += n;
        }
    }
}

#[inline(always)]
fn weighted_heads<L: Lanes, const H: usize>(
    lanes: L,
    p: &[f32],
    p_stride: usize,
    rows: &[f32],
    width: usize,
    acc: &mut [f32],
) {
    let p: [&[f32]; H] = std::array::from_fn(|h| &p[h * p_stride..h * p_stride + rows.len() / width]);
    let pair = if L::TILE == 4 && width.is_multiple_of(2 * LANES) { 2 } else { 1 };
    for d in (0..width).step_by(pair * LANES) {
        if pair == 2 {
            weighted_columns::<L, H, 2>(lanes, p, rows, width, d, acc);
        } else {
            weighted_columns::<L, H, 1>(lanes, p, rows, width, d, acc);
        }
    }
}

/// Columns `d..d + 16 C` of the weighted sums.
#[inline(always)]
fn weighted_columns<L: Lanes, const H: usize, const C: usize>(
    lanes: L,
    p: [&[f32]; H],
    rows: &[f32],
    width: usize,
    d: usize,
    acc: &mut [f32],
) {
    let span = |row: usize| row * width + d..row * width + d + C * LANES;
    let load = |from: &[f32]| -> [L::V; C] {
        let chunks = from.as_chunks().0;
        std::array::from_fn(|c| lanes.load(&chunks[c]))
    };
    let mut sums: [[L::V; C]; H] = std::array::from_fn(|h| load(&acc[span(h)]));
    for r in 0..rows.len() / width {
        let v = load(&rows[span(r)]);
        for h in 0..H {
            let weight = lanes.splat(p[h][r]);
            for c in 0..C {
                sums[h][c] = lanes.fma(weight, v[c], sums[h][c]);
            }
        }
    }
    for h in 0..H {
        let to = acc[span(h)].as_chunks_mut().0;
        for c in 0..C {
            lanes.store(sums[h][c], &mut to[c]);
        }
    }
}

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
    use super::*;

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let mut s = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..len)
            .map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn all_instruction_sets_and_tiles_give_the_same_dot_products() {
        for k in [1, 15, 16, 17, 100, 256, 1000] {
            let (w, x) = (noise(1, 11 * k), noise(2, 7 * k));
            let mut expected = vec![0.0; 77];
            for (i, w) in w.chunks(k).enumerate() {
                for (j, x) in x.chunks(k).enumerate() {
                    expected[i * 7 + j] = by_hand(w, x);
                }
            }
            for simd in Simd::available() {
                for count in 1..=7 {
                    let mut out = vec![0.0; 77];
                    matmul(simd, &w, &x, k, k, count, &mut out, Strides { w: 7, x: 1 });
                    for (row, e) in out.chunks(7).zip(expected.chunks(7)) {
                        assert_eq!(bits(&row[..count]), bits(&e[..count]), "{simd:?} k {k}");
                    }
                }
            }
        }
    }

    /// The order that the module documents, lane by lane.
    fn by_hand(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            lanes[i % LANES] = a.mul_add(*b, lanes[i % LANES]);
        }
        let mut n = LANES / 2;
        while n > 0 {
            for l in 0..n {
                lanes[l] += lanes[l + n];
            }
            n /= 2;
        }
        lanes[0]
    }

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
