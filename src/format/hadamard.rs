//! The Walsh-Hadamard rotation of the indexer: 128 points, Sylvester order, orthonormal and its own inverse.
//!
//! It leaves every dot product as it was and spreads outliers over the vector, so that FP4 rounding of index queries and keys
//! loses less. Both sides are rotated, whatever the storage format.

/// Vector length.
pub const LEN: usize = 128;
/// `128^-0.5`.
pub const NORM: f32 = 0.088_388_346;

/// `v <- H v / sqrt(128)` in f32: butterflies at distance 1, 2, 4, .. 64, then one multiplication.
#[inline(always)]
pub fn hadamard_128(v: &mut [f32; LEN]) {
    butterfly::<1>(v);
    butterfly::<2>(v);
    butterfly::<4>(v);
    butterfly::<8>(v);
    butterfly::<16>(v);
    butterfly::<32>(v);
    butterfly::<64>(v);
    for x in v {
        *x *= NORM;
    }
}

/// Sums and differences of elements `D` apart; `D` is a constant so that the inner loop vectorises.
#[inline(always)]
fn butterfly<const D: usize>(v: &mut [f32; LEN]) {
    for pair in v.chunks_exact_mut(2 * D) {
        let (low, high) = pair.split_at_mut(D);
        for (a, b) in low.iter_mut().zip(high) {
            (*a, *b) = (*a + *b, *a - *b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> [f32; LEN] {
        std::array::from_fn(|i| ((i * 37 % 101) as f32 - 50.0) / 16.0)
    }

    #[test]
    fn equals_the_sylvester_matrix() {
        let (x, mut y) = (sample(), sample());
        hadamard_128(&mut y);
        for (i, y) in y.iter().enumerate() {
            let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            let exact: f64 = (0..LEN).map(|j| sign(j) * f64::from(x[j])).sum::<f64>() / 128f64.sqrt();
            assert!((f64::from(*y) - exact).abs() < 1e-5, "row {i}: {y} against {exact}");
        }
    }

    #[test]
    fn is_its_own_inverse() {
        let mut y = sample();
        hadamard_128(&mut y);
        hadamard_128(&mut y);
        assert!(y.iter().zip(sample()).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}
