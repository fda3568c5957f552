//! Layers made blind on purpose: what answers rest on, and what a fault of the index costs.
//!
//! A knocked-out layer loses its compressed rows: a C4 layer selects random visible rows in place of the best, a C128 layer sees
//! none. What strikes a token depends on the knock-out, the token's position and its own numbers alone, so the bits of a row are
//! still those of its request.

use crate::step::Random;

/// A layer that loses its compressed rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnockOut {
    pub layer: usize,
    /// Share of tokens that it strikes, drawn for each of those at `positions`.
    pub rate: f64,
    pub seed: u64,
    /// From the first, up to but not including the second; tokens elsewhere are never struck.
    pub positions: [usize; 2],
}

impl KnockOut {
    /// Every token of `layer`.
    #[must_use]
    pub const fn of(layer: usize) -> Self {
        Self { layer, rate: 1.0, seed: 0, positions: [0, usize::MAX] }
    }

    /// The draws of a struck token; `own` is a part of its numbers.
    #[expect(clippy::cast_precision_loss, reason = "the 53 bits that an f64 holds")]
    pub(super) fn strikes(&self, position: i32, own: &[f32]) -> Option<Random> {
        let [start, end] = self.positions;
        if !usize::try_from(position).is_ok_and(|position| (start..end).contains(&position)) {
            return None;
        }
        let mut seed = self.seed ^ (self.layer as u64) << 32;
        for bits in own.iter().map(|x| x.to_bits()).chain([position.cast_unsigned()]) {
            seed = Random::new(seed ^ u64::from(bits)).bits();
        }
        let mut random = Random::new(seed);
        let uniform = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        (uniform < self.rate).then_some(random)
    }
}

/// `k` of `n` rows, each subset as likely as another; ascending.
pub(super) fn random_rows(n: usize, k: usize, random: &mut Random) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..).take(n).collect();
    for at in 0..k.min(n) {
        rows.swap(at, at + random.below(n - at));
    }
    rows.truncate(k);
    rows.sort_unstable();
    rows
}

#[cfg(test)]
mod tests {
    use super::{KnockOut, random_rows};
    use crate::step::Random;

    #[test]
    fn strikes_as_often_as_its_rate_says() {
        let struck = |rate: f64, seed| {
            let knocked = KnockOut { rate, seed, ..KnockOut::of(4) };
            (0..10_000).filter(|&p| knocked.strikes(p, &[0.5, p as f32]).is_some()).count()
        };
        assert_eq!((struck(0.0, 1), struck(1.0, 1)), (0, 10_000));
        // Six standard deviations of 10,000 draws at one in ten.
        assert!(struck(0.1, 1).abs_diff(1000) < 180);
        let draws = |seed| {
            (0..64).map(move |p| KnockOut { rate: 0.5, seed, ..KnockOut::of(2) }.strikes(p, &[]).is_some())
        };
        assert_ne!(draws(1).collect::<Vec<_>>(), draws(2).collect::<Vec<_>>());
    }

    #[test]
    fn strikes_only_at_its_positions() {
        let knocked = KnockOut { positions: [3, 5], ..KnockOut::of(4) };
        let struck: Vec<i32> = (-1..8).filter(|&p| knocked.strikes(p, &[0.5]).is_some()).collect();
        assert_eq!(struck, [3, 4]);
    }

    #[test]
    fn random_rows_are_distinct_visible_and_all_of_them_occur() {
        let mut seen = [0usize; 20];
        let mut random = Random::new(7);
        for _ in 0..2000 {
            let rows = random_rows(20, 5, &mut random);
            assert!(rows.len() == 5 && rows.is_sorted_by(|a, b| a < b));
            rows.iter().for_each(|&row| seen[row as usize] += 1);
        }
        // A quarter of 2,000, within six standard deviations.
        assert!(seen.iter().all(|n| n.abs_diff(500) < 120), "{seen:?}");
        assert_eq!(random_rows(3, 5, &mut random), [0, 1, 2]);
    }
}
