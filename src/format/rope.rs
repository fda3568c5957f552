//! Rotary position embedding: frequencies (plain and YaRN), the cos/sin table, and the rotation of a head's last 64 dims.
//!
//! Pairs are interleaved, `(2i, 2i+1)`. One table per kind of layer is built on the host and shared by queries, window rows,
//! compressed rows, index vectors and the inverse rotation of the attention output; nothing else calls a sine. YaRN bends the
//! frequencies at every position and scales no magnitude.

use std::f64::consts::PI;

/// Rotated dimensions: the last 64 of a head.
pub const DIMS: usize = 64;
/// Pairs, so frequencies.
pub const PAIRS: usize = DIMS / 2;

/// Context extension of the layers with compressed rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub original_max_position_embeddings: u32,
    pub beta_fast: f64,
    pub beta_slow: f64,
}

/// What determines the table of one kind of layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeParams {
    /// The base: `rope_theta`, or `compress_rope_theta` for layers with a compression ratio.
    pub theta: f64,
    /// `None` for layers without compression.
    pub yarn: Option<Yarn>,
}

impl RopeParams {
    /// The 32 frequencies in radians per position, computed in f64 and rounded once.
    #[must_use]
    pub fn frequencies(&self) -> [f32; PAIRS] {
        let ramp = self.yarn.map(|y| (y, correction_range(self.theta, &y)));
        std::array::from_fn(|i| {
            let plain = self.theta.powf(-2.0 * i as f64 / DIMS as f64);
            let bent = ramp.map_or(plain, |(yarn, (low, high))| {
                let keep = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                plain * keep + plain / yarn.factor * (1.0 - keep)
            });
            bent as f32
        })
    }

    /// cos and sin for positions `0..positions`: `[positions][32][2]`.
    #[must_use]
    pub fn table(&self, positions: usize) -> Vec<f32> {
        let frequencies = self.frequencies();
        let mut table = Vec::with_capacity(positions * DIMS);
        for t in 0..positions {
            for f in frequencies {
                table.extend(cos_sin(t, f));
            }
        }
        table
    }
}

/// The angle is an f32 product, rounded once as the trained model did; its cosine and sine are then as good as f32 allows.
fn cos_sin(position: usize, frequency: f32) -> [f32; 2] {
    let angle = f64::from(position as f32 * frequency);
    [angle.cos() as f32, angle.sin() as f32]
}

/// First and last pair of the ramp between kept and interpolated frequencies.
fn correction_range(theta: f64, yarn: &Yarn) -> (f64, f64) {
    let dims = DIMS as f64;
    let original = f64::from(yarn.original_max_position_embeddings);
    let pair = |rotations: f64| dims * (original / (2.0 * PI * rotations)).ln() / (2.0 * theta.ln());
    let low = pair(yarn.beta_fast).floor().max(0.0);
    let high = pair(yarn.beta_slow).ceil().min(dims - 1.0);
    if low == high { (low, high + 0.001) } else { (low, high) }
}

/// Rotates the 64 dims by one position's row of the table; `inverse` turns back.
#[inline(always)]
pub fn rotate(last64: &mut [f32; DIMS], cos_sin: &[f32; DIMS], inverse: bool) {
    let direction = if inverse { -1.0 } else { 1.0 };
    for (pair, cs) in last64.chunks_exact_mut(2).zip(cos_sin.chunks_exact(2)) {
        let (a, b, cos, sin) = (pair[0], pair[1], cs[0], cs[1] * direction);
        pair[0] = a * cos - b * sin;
        pair[1] = a * sin + b * cos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLASH: RopeParams = RopeParams {
        theta: 160_000.0,
        yarn: Some(Yarn {
            factor: 16.0,
            original_max_position_embeddings: 65536,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }),
    };

    fn row(table: &[f32], t: usize) -> &[f32; DIMS] {
        table[t * DIMS..][..DIMS].try_into().unwrap()
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let yarn = FLASH.yarn.unwrap();
        assert_eq!(correction_range(FLASH.theta, &yarn), (15.0, 25.0));
        let plain = RopeParams { yarn: None, ..FLASH }.frequencies();
        let bent = FLASH.frequencies();
        assert_eq!(bent[..16], plain[..16]);
        for i in 25..PAIRS {
            assert!((f64::from(bent[i]) * 16.0 / f64::from(plain[i]) - 1.0).abs() < 1e-6, "pair {i}");
        }
        // Pair 20 is half-way: the mean of the frequency and a sixteenth of it.
        assert!((f64::from(bent[20]) / f64::from(plain[20]) - 17.0 / 32.0).abs() < 1e-6);
    }

    #[test]
    fn an_empty_ramp_does_not_divide_by_zero() {
        let yarn = Yarn {
            beta_fast: 1.0,
            beta_slow: 1.0,
            original_max_position_embeddings: 6,
            ..FLASH.yarn.unwrap()
        };
        let f = RopeParams { yarn: Some(yarn), ..FLASH }.frequencies();
        assert!(f.iter().all(|f| f.is_finite()));
    }

    #[test]
    fn table_is_interleaved_and_accurate_far_out() {
        let params = RopeParams { theta: 10_000.0, yarn: None };
        let table = params.table(3);
        assert_eq!(row(&table, 0)[..4], [1.0, 0.0, 1.0, 0.0]);
        assert!((f64::from(row(&table, 2)[0]) - 2f64.cos()).abs() < 1e-7);
        assert!((f64::from(row(&table, 2)[1]) - 2f64.sin()).abs() < 1e-7);
        let [cos, sin] = cos_sin((1 << 20) - 1, params.frequencies()[3]);
        assert!((f64::from(cos).hypot(f64::from(sin)) - 1.0).abs() < 1e-7);
    }

    #[test]
    fn rotation_is_by_the_angle_difference_and_inverts() {
        let table = FLASH.table(64);
        let x: [f32; DIMS] = std::array::from_fn(|i| (i as f32 * 0.7).sin());
        let y: [f32; DIMS] = std::array::from_fn(|i| (i as f32 * 1.3).cos());
        let turned = |v: &[f32; DIMS], t: usize| {
            let mut v = *v;
            rotate(&mut v, row(&table, t), false);
            v
        };
        let dot =
            |a: [f32; DIMS], b: [f32; DIMS]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let near = dot(turned(&x, 17), turned(&y, 5));
        let far = dot(turned(&x, 60), turned(&y, 48));
        assert!((near - far).abs() < 1e-4, "{near} {far}");
        let mut back = turned(&x, 33);
        assert!(back.iter().zip(&x).any(|(a, b)| (a - b).abs() > 0.1), "position 33 must turn something");
        rotate(&mut back, row(&table, 33), true);
        assert!(back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}
