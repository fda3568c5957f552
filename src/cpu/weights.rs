//! Weights by id, packed as the checkpoint stores them and decoded a few rows at a time.
//!
//! Nothing packed is decoded for good: the decoded rows of a tile serve all rows of activations and are then forgotten. Where
//! the bytes lie (a memory map, the binary itself) is the checkpoint's business.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::knock_out::KnockOut;
use super::simd::{Simd, kernel};
use crate::checkpoint::Matrix;
use crate::model::{Loaded, layer_scope};
use crate::step::WeightId;

#[derive(Clone, Debug)]
enum Entry {
    Packed(Matrix),
    Floats(Arc<[f32]>),
    Table(Arc<[i32]>),
}

/// Every weight of a model or a test.
#[derive(Clone, Debug)]
pub struct Weights {
    all: HashMap<WeightId, Entry>,
    simd: Simd,
    /// By the scope of a layer's nodes.
    knocked_out: HashMap<String, KnockOut>,
}

impl Default for Weights {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<(WeightId, Loaded)> for Weights {
    /// The weights of a model, for the widest instructions of this processor.
    fn from_iter<I: IntoIterator<Item = (WeightId, Loaded)>>(loaded: I) -> Self {
        let mut weights = Self::new();
        for (id, loaded) in loaded {
            match loaded {
                Loaded::Matrix(matrix) => weights.insert(id, matrix),
                Loaded::Floats(values) => weights.insert_f32(id, values),
                Loaded::Table(table) => weights.insert_table(id, table.ids),
            }
        }
        weights
    }
}

impl Weights {
    /// None yet; operations on them will use the widest instructions of this processor.
    #[must_use]
    pub fn new() -> Self {
        Self::with_simd(Simd::detect())
    }

    /// None yet; operations on them will use the given instructions.
    #[must_use]
    pub fn with_simd(simd: Simd) -> Self {
        Self { all: HashMap::new(), simd, knocked_out: HashMap::new() }
    }

    /// A matrix in any storage format.
    pub fn insert(&mut self, id: WeightId, matrix: Matrix) {
        self.all.insert(id, Entry::Packed(matrix));
    }

    /// Numbers, row-major.
    pub fn insert_f32(&mut self, id: WeightId, values: impl Into<Arc<[f32]>>) {
        self.all.insert(id, Entry::Floats(values.into()));
    }

    /// Integers, row-major: the expert table of a hash layer.
    pub fn insert_table(&mut self, id: WeightId, values: impl Into<Arc<[i32]>>) {
        self.all.insert(id, Entry::Table(values.into()));
    }

    /// From now on, operations with these weights treat a layer as knocked out.
    pub fn knock_out(&mut self, layer: KnockOut) {
        self.knocked_out.insert(layer_scope(layer.layer), layer);
    }

    pub(super) fn knocked_out(&self, scope: &str) -> Option<KnockOut> {
        self.knocked_out.get(scope).copied()
    }

    pub(super) fn simd(&self) -> Simd {
        self.simd
    }

    /// A weight with `cols` columns; `None` if there is none of numbers.
    pub(super) fn numbers(&self, id: WeightId, cols: usize) -> Option<Numbers<'_>> {
        match self.all.get(&id)? {
            Entry::Packed(matrix) => Some(Numbers::Packed(matrix)),
            Entry::Floats(values) => Some(Numbers::Floats { values, cols }),
            Entry::Table(_) => None,
        }
    }

    pub(super) fn table(&self, id: WeightId) -> Option<&[i32]> {
        match self.all.get(&id)? {
            Entry::Table(values) => Some(values),
            Entry::Packed(_) | Entry::Floats(_) => None,
        }
    }
}

/// The rows of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers<'a> {
    Packed(&'a Matrix),
    /// Has no shape of its own: the operation says how many columns.
    Floats {
        values: &'a [f32],
        cols: usize,
    },
}

impl<'a> Numbers<'a> {
    /// Rows and columns.
    pub(super) fn shape(self) -> (usize, usize) {
        match self {
            Self::Packed(matrix) => (matrix.rows, matrix.cols),
            Self::Floats { values, cols } => (values.len() / cols.max(1), cols),
        }
    }

    /// Rows as f32: borrowed where they are stored so, else decoded into `buffer`.
    pub(super) fn decode<'b>(self, simd: Simd, rows: Range<usize>, buffer: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        match self {
            Self::Floats { values, cols } => &values[rows.start * cols..rows.end * cols],
            Self::Packed(matrix) => {
                let len = rows.len() * matrix.cols;
                if buffer.len() < len {
                    buffer.resize(len, 0.0);
                }
                decode_rows(simd, matrix, rows, &mut buffer[..len]);
                &buffer[..len]
            }
        }
    }

    /// All elements, for small weights.
    pub(super) fn values(self, simd: Simd) -> Cow<'a, [f32]> {
        match self {
            Self::Floats { values, .. } => Cow::Borrowed(values),
            Self::Packed(matrix) => {
                let mut all = vec![0.0; matrix.rows * matrix.cols];
                decode_rows(simd, matrix, 0..matrix.rows, &mut all);
                Cow::Owned(all)
            }
        }
    }
}

kernel! {
    fn decode_rows<'a>(_lanes; matrix: &'a Matrix, rows: Range<usize>, out: &'a mut [f32]) -> () {
        // Row by row: this is inlined, and so compiled for the lanes; `Matrix::decode_rows` is not.
        for (row, out) in rows.zip(out.chunks_exact_mut(matrix.cols)) {
            matrix.row(row).decode(out);
        }
    }
}
