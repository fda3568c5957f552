//! Weights as the oracle holds them: decoded once, by id.

use std::collections::BTreeMap;

use crate::model::Loaded;
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

    /// Decodes loaded weights.
    #[must_use]
    pub fn from_loaded(loaded: &[(WeightId, Loaded)]) -> Self {
        let mut weights = Self::new();
        for (id, loaded) in loaded {
            match loaded {
                Loaded::Matrix(matrix) => {
                    let mut values = vec![0.0; matrix.rows * matrix.cols];
                    matrix.decode_rows(0..matrix.rows, &mut values);
                    weights.insert_f32(*id, &values);
                }
                Loaded::Floats(values) => weights.insert_f32(*id, values),
                Loaded::Table(table) => weights.insert_table(*id, table.ids.to_vec()),
            }
        }
        weights
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
