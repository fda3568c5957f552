//! Weights by id, packed as they are stored and decoded a few rows at a time.
//!
//! A weight is a stack of matrices of one width: `[wkv; wgate]`, or w1 and w3 of every expert. Each keeps its own format and
//! scales. Nothing is decoded for good: the decoded rows of a tile are used for all rows of activations and forgotten.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::simd::{Simd, kernel};
use crate::format::fp8_block::{self, BlockScales};
use crate::format::{bf16, mxfp4, nvfp4};
use crate::step::WeightId;

/// Elements of a matrix, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    F32(Vec<f32>),
    /// Little-endian pairs of bytes.
    Bf16(Vec<u8>),
    /// e4m3 codes with ue8m0 scales per 128 x 128 block.
    Fp8 {
        codes: Vec<u8>,
        scales: Vec<u8>,
    },
    /// e4m3 codes with f32 scales (little-endian bytes) per 128 x 128 block.
    Fp8F32 {
        codes: Vec<u8>,
        scales: Vec<u8>,
    },
    NvFp4 {
        codes: Vec<u8>,
        scales: Vec<u8>,
        scale2: f32,
    },
    MxFp4 {
        codes: Vec<u8>,
        scales: Vec<u8>,
    },
}

/// One matrix of a stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    rows: usize,
    cols: usize,
    storage: Storage,
}

/// A weight whose bytes do not fit its shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    #[error("a weight of {rows} x {cols} in {format} must have {expected} bytes of {what}, found {found}")]
    Length {
        rows: usize,
        cols: usize,
        format: &'static str,
        what: &'static str,
        expected: usize,
        found: usize,
    },
    #[error("a row of {format} must be a multiple of {block} wide, found {found}")]
    Block { format: &'static str, block: usize, found: usize },
    #[error("the matrices of a stack must have the same width, found {expected} and {found}")]
    Width { expected: usize, found: usize },
}

impl Part {
    /// Checks that the bytes make `rows x cols` elements.
    ///
    /// # Errors
    /// [`WeightError`].
    pub fn new(rows: usize, cols: usize, storage: Storage) -> Result<Self, WeightError> {
        let blocks = rows.div_ceil(fp8_block::BLOCK) * cols.div_ceil(fp8_block::BLOCK);
        let n = rows * cols;
        let (format, block, wanted): (_, _, [usize; 2]) = match &storage {
            Storage::F32(_) => ("f32", 1, [4 * n, 0]),
            Storage::Bf16(_) => ("bf16", 1, [2 * n, 0]),
            Storage::Fp8 { .. } => ("FP8", 1, [n, blocks]),
            Storage::Fp8F32 { .. } => ("FP8", 1, [n, 4 * blocks]),
            Storage::NvFp4 { .. } => ("NVFP4", nvfp4::BLOCK, [n / 2, n / nvfp4::BLOCK]),
            Storage::MxFp4 { .. } => ("MXFP4", mxfp4::BLOCK, [n / 2, n / mxfp4::BLOCK]),
        };
        if !cols.is_multiple_of(block) {
            return Err(WeightError::Block { format, block, found: cols });
        }
        let found = match &storage {
            Storage::F32(values) => [4 * values.len(), 0],
            Storage::Bf16(bytes) => [bytes.len(), 0],
            Storage::Fp8 { codes, scales }
            | Storage::Fp8F32 { codes, scales }
            | Storage::MxFp4 { codes, scales }
            | Storage::NvFp4 { codes, scales, .. } => [codes.len(), scales.len()],
        };
        for (what, (expected, found)) in ["elements", "scales"].into_iter().zip(wanted.into_iter().zip(found))
        {
            if expected != found {
                return Err(WeightError::Length { rows, cols, format, what, expected, found });
            }
        }
        Ok(Self { rows, cols, storage })
    }
}

kernel! {
    fn decode_part<'a>(_lanes; part: &'a Part, first: usize, out: &'a mut [f32]) -> () {
        let cols = part.cols;
        for (r, out) in (first..).zip(out.chunks_exact_mut(cols)) {
            let bytes = |of: usize| r * of..(r + 1) * of;
            match &part.storage {
                Storage::F32(values) => out.copy_from_slice(&values[bytes(cols)]),
                Storage::Bf16(all) => bf16::decode_into(&all[bytes(2 * cols)], out),
                Storage::Fp8 { codes, scales } => {
                    let (n, at) = (cols.div_ceil(fp8_block::BLOCK), r / fp8_block::BLOCK);
                    fp8_block::decode_row(&codes[bytes(cols)], BlockScales::Ue8m0(&scales[at * n..(at + 1) * n]), out);
                }
                Storage::Fp8F32 { codes, scales } => {
                    let (n, at) = (4 * cols.div_ceil(fp8_block::BLOCK), r / fp8_block::BLOCK);
                    fp8_block::decode_row(&codes[bytes(cols)], BlockScales::F32(&scales[at * n..(at + 1) * n]), out);
                }
                Storage::NvFp4 { codes, scales, scale2 } => {
                    nvfp4::decode_into(&codes[bytes(cols / 2)], &scales[bytes(cols / nvfp4::BLOCK)], *scale2, out);
                }
                Storage::MxFp4 { codes, scales } => {
                    mxfp4::decode_into(&codes[bytes(cols / 2)], &scales[bytes(cols / mxfp4::BLOCK)], out);
                }
            }
        }
    }
}

/// Matrices of one width, stacked by rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    parts: Vec<Part>,
    /// First row of each part, and at the end the number of rows.
    starts: Vec<usize>,
    cols: usize,
}

impl Matrix {
    /// # Errors
    /// [`WeightError::Width`].
    pub fn stack(parts: Vec<Part>) -> Result<Self, WeightError> {
        let cols = parts.first().map_or(0, |p| p.cols);
        if let Some(other) = parts.iter().find(|p| p.cols != cols) {
            return Err(WeightError::Width { expected: cols, found: other.cols });
        }
        let mut starts = vec![0];
        for part in &parts {
            starts.push(starts[starts.len() - 1] + part.rows);
        }
        Ok(Self { parts, starts, cols })
    }

    #[must_use]
    pub fn rows(&self) -> usize {
        self.starts[self.parts.len()]
    }

    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The rows as f32: borrowed where they are stored so, else decoded into `buffer`.
    pub(super) fn decode<'a>(
        &'a self,
        simd: Simd,
        rows: Range<usize>,
        buffer: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let part = self.starts.partition_point(|&s| s <= rows.start).saturating_sub(1);
        if let Some(Part { storage: Storage::F32(values), rows: n, .. }) = self.parts.get(part) {
            let start = self.starts[part];
            if rows.end <= start + n {
                return &values[(rows.start - start) * self.cols..(rows.end - start) * self.cols];
            }
        }
        let len = rows.len() * self.cols;
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
        let (mut at, mut out) = (rows.start, &mut buffer[..len]);
        for (part, ends) in self.parts.iter().zip(self.starts.windows(2)).skip(part) {
            let count = ends[1].min(rows.end).saturating_sub(at);
            if count == 0 {
                continue;
            }
            let (here, rest) = out.split_at_mut(count * self.cols);
            decode_part(simd, part, at - ends[0], here);
            (at, out) = (at + count, rest);
        }
        &buffer[..len]
    }

    /// All elements as f32, for small weights.
    pub(super) fn values(&self, simd: Simd) -> Cow<'_, [f32]> {
        if let [Part { storage: Storage::F32(values), .. }] = &self.parts[..] {
            return Cow::Borrowed(values);
        }
        let mut all = Vec::new();
        self.decode(simd, 0..self.rows(), &mut all);
        Cow::Owned(all)
    }
}

#[derive(Clone, Debug)]
enum Entry {
    Matrix(Matrix),
    Table(Vec<i32>),
}

/// Every weight of a model or a test.
#[derive(Clone, Debug)]
pub struct Weights {
    all: HashMap<WeightId, Entry>,
    simd: Simd,
}

impl Default for Weights {
    fn default() -> Self {
        Self::new()
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
        Self { all: HashMap::new(), simd }
    }

    pub fn insert(&mut self, id: WeightId, matrix: Matrix) {
        self.all.insert(id, Entry::Matrix(matrix));
    }

    /// Numbers, row-major.
    ///
    /// # Errors
    /// [`WeightError::Length`] if they are not `rows x cols`.
    pub fn insert_f32(
        &mut self,
        id: WeightId,
        rows: usize,
        cols: usize,
        values: Vec<f32>,
    ) -> Result<(), WeightError> {
        self.insert(id, Matrix::stack(vec![Part::new(rows, cols, Storage::F32(values))?])?);
        Ok(())
    }

    /// Integers, row-major: the expert table of a hash layer.
    pub fn insert_table(&mut self, id: WeightId, values: Vec<i32>) {
        self.all.insert(id, Entry::Table(values));
    }

    pub(super) fn simd(&self) -> Simd {
        self.simd
    }

    pub(super) fn matrix(&self, id: WeightId) -> Option<&Matrix> {
        match self.all.get(&id)? {
            Entry::Matrix(matrix) => Some(matrix),
            Entry::Table(_) => None,
        }
    }

    pub(super) fn table(&self, id: WeightId) -> Option<&[i32]> {
        match self.all.get(&id)? {
            Entry::Table(values) => Some(values),
            Entry::Matrix(_) => None,
        }
    }
}
