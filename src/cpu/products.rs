//! Products of vectors: dot products and weighted sums of rows.
//!
//! Reductions go over sixteen lanes in the order that [`super::simd`] fixes; what is not reduced is tiled at will, since no
//! element's own sequence of operations depends on its tile.

use super::simd::{LANES, Lanes, Simd, kernel};

/// Where the results of [`matmul`] go: element `(i, j)` at `i * w + j * x`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    pub w: usize,
    pub x: usize,
}

/// Rows of activations: `count` of `width` elements, at multiples of `stride`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    pub values: &'a [f32],
    pub width: usize,
    pub stride: usize,
    pub count: usize,
}

impl<'a> Inputs<'a> {
    /// Rows that lie together.
    pub(super) fn dense(values: &'a [f32], width: usize) -> Self {
        Self { values, width, stride: width, count: values.len() / width.max(1) }
    }
}

kernel! {
    /// `out[i, j] = w_i . x_j` for the rows `w_i` of `w`, which is dense. Each product is one canonical sum.
    pub(super) fn matmul<'a>(lanes; w: &'a [f32], x: Inputs<'a>, out: &'a mut [f32], to: Strides) -> () {
        let mut j = 0;
        while j < x.count && x.width > 0 {
            let n = if L::TILE == 4 && j + 4 <= x.count { 4 } else if j + 2 <= x.count { 2 } else { 1 };
            let part = Inputs { values: &x.values[j * x.stride..], count: n, ..x };
            let out = &mut out[j * to.x..];
            match n {
                4 => columns::<L, 4, 4>(lanes, w, part, out, to),
                2 if L::TILE == 4 => columns::<L, 4, 2>(lanes, w, part, out, to),
                2 => columns::<L, 2, 2>(lanes, w, part, out, to),
                _ if L::TILE == 4 => columns::<L, 8, 1>(lanes, w, part, out, to),
                _ => columns::<L, 4, 1>(lanes, w, part, out, to),
            }
            j += n;
        }
    }
}

/// All rows of `w` against the first `A` rows of `x`, `W` rows at a time.
#[inline(always)]
fn columns<L: Lanes, const W: usize, const A: usize>(
    lanes: L,
    w: &[f32],
    x: Inputs<'_>,
    out: &mut [f32],
    to: Strides,
) {
    let k = x.width;
    let rows = w.len() / k;
    let xs: [&[f32]; A] = std::array::from_fn(|j| &x.values[j * x.stride..j * x.stride + k]);
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
pub(super) fn dot_tile<L: Lanes, const W: usize, const A: usize>(
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
        let mut xv = [lanes.splat(0.0); A];
        for j in 0..A {
            xv[j] = lanes.load(&xc[j][c]);
        }
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
    matmul(simd, a, Inputs::dense(b, b.len()), &mut out, Strides { w: 1, x: 1 });
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::cpu) fn noise(seed: u32, len: usize) -> Vec<f32> {
        let mut s = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..len)
            .map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    pub(in crate::cpu) fn bits(values: &[f32]) -> Vec<u32> {
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
                    let inputs = Inputs { count, ..Inputs::dense(&x, k) };
                    matmul(simd, &w, inputs, &mut out, Strides { w: 7, x: 1 });
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
}
