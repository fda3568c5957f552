//! Numbers for cases: a seeded counter-based generator, and the configuration that keeps every run of the suite the same.

use proptest::test_runner::{Config, RngSeed};

/// `cases` cases, the same in every run with the same `FLASHLANE_SEED`, a number.
pub(crate) fn config(cases: u32) -> Config {
    let number = |text: String| match text.parse() {
        Ok(number) => number,
        Err(_) => panic!("FLASHLANE_SEED: expected a whole number, found {text:?}"),
    };
    let seed = std::env::var("FLASHLANE_SEED").map_or(0x5eed, number);
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() }
}

/// A stream of numbers that its seed alone decides.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.bits() % n as u64).unwrap()
    }

    /// Uniform in `[-1, 1)`, exact in f32.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// Roughly normal, of standard deviation `scale`: a sum of three uniform numbers, so bounded by `3 scale`.
    pub(crate) fn normal(&mut self, scale: f32) -> f32 {
        (self.uniform() + self.uniform() + self.uniform()) * scale
    }

    /// `len` normal numbers.
    pub(crate) fn normals(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.normal(scale)).collect()
    }

    /// `len` normal numbers that are exact in bf16, so that an activation is the same in both types.
    pub(crate) fn exact(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| half::bf16::from_f32(self.normal(scale)).to_f32()).collect()
    }

    /// `0..n` in random order.
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
