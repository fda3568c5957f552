//! Rows of bits, for the planner's reachability. The proof has its own, so that one mistake cannot hide in both.

#[derive(Clone, Debug)]
pub(super) struct Matrix {
    words: usize,
    bits: Vec<u64>,
}

impl Matrix {
    pub(super) fn new(rows: usize, columns: usize) -> Self {
        let words = columns.div_ceil(64);
        Self { words, bits: vec![0; rows * words] }
    }

    pub(super) fn row(&self, row: usize) -> &[u64] {
        &self.bits[row * self.words..][..self.words]
    }

    pub(super) fn get(&self, row: usize, column: usize) -> bool {
        self.bits[row * self.words + column / 64] >> (column % 64) & 1 == 1
    }

    pub(super) fn set(&mut self, row: usize, column: usize) {
        self.bits[row * self.words + column / 64] |= 1 << (column % 64);
    }

    /// `row |= other`, two rows of the matrix with `other < row`.
    pub(super) fn include(&mut self, row: usize, other: usize) {
        let (low, high) = self.bits.split_at_mut(row * self.words);
        for (to, from) in high[..self.words].iter_mut().zip(&low[other * self.words..]) {
            *to |= from;
        }
    }
}
