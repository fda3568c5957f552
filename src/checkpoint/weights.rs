//! Tensors as they are stored: matrices in any weight format, vectors and id tables; and how a matrix is read.

use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use super::error::TensorProblem;
use super::map::Span;
use crate::format::fp8_block::{self, BlockScales};
use crate::format::{bf16, mxfp4, nvfp4};

/// How a matrix is stored. Decided per tensor, by what lies beside it in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    F32,
    Bf16,
    /// e4m3 with a ue8m0 scale for each 128x128.
    Fp8Block,
    /// e4m3 with an f32 scale for each 128x128.
    Fp8BlockF32,
    /// e2m1 with an e4m3 scale for each 1x16 and one f32.
    Nvfp4,
    /// e2m1 with a ue8m0 scale for each 1x32.
    Mxfp4,
}

impl WeightFormat {
    /// Code bytes of a row.
    #[must_use]
    pub const fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::F32 => 4 * cols,
            Self::Bf16 => 2 * cols,
            Self::Fp8Block | Self::Fp8BlockF32 => cols,
            Self::Nvfp4 | Self::Mxfp4 => cols / 2,
        }
    }

    /// Scale bytes of a row, or of a row of blocks for the FP8 formats.
    #[must_use]
    pub const fn scale_row_bytes(self, cols: usize) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Fp8Block => cols.div_ceil(fp8_block::BLOCK),
            Self::Fp8BlockF32 => 4 * cols.div_ceil(fp8_block::BLOCK),
            Self::Nvfp4 => cols / nvfp4::BLOCK,
            Self::Mxfp4 => cols / mxfp4::BLOCK,
        }
    }

    /// Rows that share a row of scales.
    #[must_use]
    pub const fn scale_rows(self) -> usize {
        match self {
            Self::Fp8Block | Self::Fp8BlockF32 => fp8_block::BLOCK,
            _ => 1,
        }
    }
}

/// Consecutive rows of a matrix that lie together.
#[derive(Clone, Debug)]
pub struct Part {
    /// The first of the matrix's rows that this part holds.
    pub first_row: usize,
    pub rows: usize,
    /// `[rows, row_bytes]`.
    pub codes: Span,
    /// `[rows / scale_rows, scale_row_bytes]`, rounded up.
    pub scales: Span,
    /// Second-level scale of NVFP4; 1 otherwise.
    pub scale2: f32,
}

/// A weight `[rows, cols]` in its storage format, as one or several parts stacked by rows.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub name: Arc<str>,
    pub rows: usize,
    pub cols: usize,
    pub format: WeightFormat,
    /// In row order, without gaps.
    pub parts: Vec<Part>,
}

/// One row of a matrix as stored, for products that decode as they go.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub format: WeightFormat,
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub scale2: f32,
}

impl Row<'_> {
    /// Decodes the whole row.
    #[inline(always)]
    pub fn decode(&self, out: &mut [f32]) {
        match self.format {
            WeightFormat::F32 => {
                for (b, o) in self.codes.chunks_exact(4).zip(out) {
                    *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            WeightFormat::Bf16 => bf16::decode_into(self.codes, out),
            WeightFormat::Fp8Block => fp8_block::decode_row(self.codes, BlockScales::Ue8m0(self.scales), out),
            WeightFormat::Fp8BlockF32 => {
                fp8_block::decode_row(self.codes, BlockScales::F32(self.scales), out);
            }
            WeightFormat::Nvfp4 => nvfp4::decode_into(self.codes, self.scales, self.scale2, out),
            WeightFormat::Mxfp4 => mxfp4::decode_into(self.codes, self.scales, out),
        }
    }
}

impl Matrix {
    /// Several matrices as one, by rows. `None` if there are none, or their columns or formats differ.
    #[must_use]
    pub fn stack(name: &str, matrices: &[&Self]) -> Option<Self> {
        let first = matrices.first()?;
        let mut stacked =
            Self { name: name.into(), rows: 0, cols: first.cols, format: first.format, parts: Vec::new() };
        for m in matrices {
            if (m.cols, m.format) != (first.cols, first.format) {
                return None;
            }
            let shifted = m.parts.iter().map(|p| Part { first_row: stacked.rows + p.first_row, ..p.clone() });
            stacked.parts.extend(shifted);
            stacked.rows += m.rows;
        }
        Some(stacked)
    }

    /// The part that holds a row.
    #[must_use]
    pub fn part(&self, row: usize) -> &Part {
        &self.parts[self.parts.partition_point(|p| p.first_row <= row) - 1]
    }

    /// One row as stored.
    #[inline]
    #[must_use]
    pub fn row(&self, row: usize) -> Row<'_> {
        debug_assert!(row < self.rows);
        let part = self.part(row);
        let row = row - part.first_row;
        let (bytes, scale_bytes) = (self.format.row_bytes(self.cols), self.format.scale_row_bytes(self.cols));
        let scale_row = row / self.format.scale_rows();
        Row {
            format: self.format,
            codes: &part.codes[row * bytes..(row + 1) * bytes],
            scales: &part.scales[scale_row * scale_bytes..(scale_row + 1) * scale_bytes],
            scale2: part.scale2,
        }
    }

    /// Decodes rows into `out`, `[rows.len(), cols]`.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [f32]) {
        debug_assert_eq!(out.len(), rows.len() * self.cols);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.cols)) {
            self.row(row).decode(out);
        }
    }

    /// All rows decoded.
    #[must_use]
    pub fn decode(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        self.decode_rows(0..self.rows, &mut values);
        values
    }

    /// The first element that is no finite number, in row order. Those of FP4 formats all are; their scales have been checked.
    #[must_use]
    pub fn not_finite(&self) -> Option<TensorProblem> {
        self.parts.iter().find_map(|part| {
            let (at, value) = match self.format {
                WeightFormat::F32 => first(&part.codes, |b: &[u8; 4]| !f32::from_le_bytes(*b).is_finite())
                    .map(|(at, b)| (at, f32::from_le_bytes(b))),
                WeightFormat::Bf16 => {
                    first(&part.codes, |b: &[u8; 2]| b[1] & 0x7f == 0x7f && b[0] & 0x80 != 0)
                        .map(|(at, b)| (at, half::bf16::from_le_bytes(b).to_f32()))
                }
                WeightFormat::Fp8Block | WeightFormat::Fp8BlockF32 => {
                    first(&part.codes, |b: &[u8; 1]| b[0] & 0x7f == 0x7f).map(|(at, _)| (at, f32::NAN))
                }
                WeightFormat::Nvfp4 | WeightFormat::Mxfp4 => None,
            }?;
            let (name, index) = (self.name.to_string(), part.first_row * self.cols + at);
            Some(TensorProblem::NotFinite { name, index, value: value.to_string() })
        })
    }

    /// Bytes in the file: codes and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let scale2 = if self.format == WeightFormat::Nvfp4 { 4 } else { 0 };
        self.parts.iter().map(|p| p.codes.len() + p.scales.len() + scale2).sum()
    }
}

/// The first element that is bad. Many are looked at together, so that the loop vectorises.
fn first<const N: usize>(bytes: &[u8], bad: impl Fn(&[u8; N]) -> bool) -> Option<(usize, [u8; N])> {
    const TOGETHER: usize = 4096;
    let chunks = bytes.as_chunks::<N>().0.chunks(TOGETHER).enumerate();
    let mut marked = chunks.filter(|(_, chunk)| chunk.iter().fold(false, |any, element| any | bad(element)));
    let (at, chunk) = marked.next()?;
    let within = chunk.iter().position(bad)?;
    Some((at * TOGETHER + within, chunk[within]))
}

/// A small parameter (norm, bias, sink), decoded.
#[derive(Clone, Debug)]
pub struct Vector {
    pub name: Arc<str>,
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: Arc<[f32]>,
    /// How it is stored: [`WeightFormat::F32`] or [`WeightFormat::Bf16`].
    pub format: WeightFormat,
    pub data: Span,
}

/// Expert ids of each token of the vocabulary, `[rows, cols]`, each below the number of experts. Ids of a row may repeat.
#[derive(Clone, Debug)]
pub struct IdTable {
    pub name: Arc<str>,
    pub rows: usize,
    pub cols: usize,
    pub ids: Arc<[i32]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(format: WeightFormat, codes: Vec<u8>, cols: usize) -> Option<(usize, String)> {
        let half = codes.len() / 2;
        let parts = [&codes[..half], &codes[half..]];
        let rows = half / format.row_bytes(cols);
        let part = |(i, codes): (usize, &[u8])| Part {
            first_row: i * rows,
            rows,
            codes: codes.to_vec().into(),
            scales: Span::empty(),
            scale2: 1.0,
        };
        let parts = parts.into_iter().enumerate().map(part).collect();
        let matrix = Matrix { name: "m".into(), rows: 2 * rows, cols, format, parts };
        matrix.not_finite().map(|problem| match problem {
            TensorProblem::NotFinite { name, index, value } if &*name == "m" => (index, value),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn elements_that_are_no_numbers_are_found_wherever_they_are() {
        let finite = [f32::MAX, f32::MIN, 0.0, -0.0, f32::MIN_POSITIVE, 1.0].map(f32::to_le_bytes).concat();
        assert_eq!(of(WeightFormat::F32, finite.repeat(2), 6), None);
        for (bad, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            for at in [0, 5, 9_999, 10_000, 19_999] {
                let mut codes = vec![0; 4 * 20_000];
                codes[4 * at..4 * at + 4].copy_from_slice(&bad.to_le_bytes());
                assert_eq!(of(WeightFormat::F32, codes, 10), Some((at, name.to_owned())));
                let mut codes = vec![0x3f; 2 * 20_000];
                codes[2 * at..2 * at + 2].copy_from_slice(&half::bf16::from_f32(bad).to_le_bytes());
                assert_eq!(of(WeightFormat::Bf16, codes, 10), Some((at, name.to_owned())));
            }
        }
        // Every byte but the two NaNs is an e4m3 number.
        let bytes: Vec<u8> = (0..=255).filter(|b| b & 0x7f != 0x7f).collect();
        assert_eq!(of(WeightFormat::Fp8Block, bytes.clone(), 1), None);
        for nan in [0x7f, 0xff] {
            let mut codes = bytes.clone();
            codes[200] = nan;
            assert_eq!(of(WeightFormat::Fp8BlockF32, codes, 1), Some((200, "NaN".to_owned())));
        }
        assert_eq!(of(WeightFormat::Nvfp4, vec![0xff; 64], 32), None);
    }
}
