//! Which weights the model needs: an id for each, and which checkpoint tensors it is made of. Holds no data, so a step can
//! be built, planned and proved for a model that no machine here could load.

use crate::format::rope::RopeParams;
use crate::step::{Weight, WeightId};

/// Where a weight's elements come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Matrices stacked by rows, in the format of the checkpoint.
    Stack(Vec<String>),
    /// A vector or matrix of floats, used as f32.
    Floats(String),
    /// A table of ids, used as i32.
    Table(String),
    /// Cosines and sines by position, made by the host.
    Rope { rope: RopeParams, positions: usize },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub weight: Weight,
    pub source: Source,
}

/// Every weight of a model, by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registry {
    pub entries: Vec<Entry>,
}

impl Registry {
    /// Adds a weight; `bytes` are those of its official storage format.
    pub fn add(&mut self, name: &str, source: Source, rows: usize, cols: usize, bytes: usize) -> Weight {
        let id = WeightId(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        let weight = Weight { id, name: name.to_owned(), rows, cols, bytes };
        self.entries.push(Entry { weight: weight.clone(), source });
        weight
    }

    /// A bf16 matrix.
    pub(super) fn bf16(&mut self, name: &str, rows: usize, cols: usize) -> Weight {
        self.add(name, Source::Stack(vec![name.to_owned()]), rows, cols, rows * cols * 2)
    }

    /// An FP8 matrix with a scale per 128 x 128 block.
    pub(super) fn fp8(&mut self, name: &str, rows: usize, cols: usize) -> Weight {
        self.fp8_stack(name, &[name.to_owned()], rows, cols)
    }

    /// FP8 matrices of equal shape stacked by rows.
    pub(super) fn fp8_stack(&mut self, name: &str, parts: &[String], rows: usize, cols: usize) -> Weight {
        let bytes = rows * cols + rows.div_ceil(128) * cols.div_ceil(128);
        self.add(name, Source::Stack(parts.to_vec()), rows, cols, bytes)
    }

    /// An f32 tensor of `rows x cols`.
    pub(super) fn floats(&mut self, name: &str, rows: usize, cols: usize) -> Weight {
        self.add(name, Source::Floats(name.to_owned()), rows, cols, rows * cols * 4)
    }
}
