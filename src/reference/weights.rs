//! Weights as the oracle holds them: decoded once, by id.

use std::collections::BTreeMap;

use crate::step::WeightId;

#[derive(Clone, Debug)]
enum Decoded {
    Real(Vec<f64>),
    Table(Vec<i32>),
}

/// Every weight of a model or a test, decoded to f64 or kept as integers.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    all: BTreeMap<WeightId, Decoded>,
}

impl Weights {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Numbers, row-major.
    pub fn insert(&mut self, id: WeightId, values: Vec<f64>) {
        self.all.insert(id, Decoded::Real(values));
    }

    /// Numbers that are exact in f32, row-major.
    pub fn insert_f32(&mut self, id: WeightId, values: &[f32]) {
        self.insert(id, values.iter().map(|&v| f64::from(v)).collect());
    }

    /// Integers, row-major: the expert table of a hash layer.
    pub fn insert_table(&mut self, id: WeightId, values: Vec<i32>) {
        self.all.insert(id, Decoded::Table(values));
    }

    pub(super) fn real(&self, id: WeightId) -> Option<&[f64]> {
        match self.all.get(&id)? {
            Decoded::Real(values) => Some(values),
            Decoded::Table(_) => None,
        }
    }

    pub(super) fn table(&self, id: WeightId) -> Option<&[i32]> {
        match self.all.get(&id)? {
            Decoded::Table(values) => Some(values),
            Decoded::Real(_) => None,
        }
    }
}
