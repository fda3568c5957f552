//! FP8 weights in blocks: e4m3 codes `[N, K]` with one scale for each 128x128 block, the last ones of a side partial.
//!
//! `W[n,k] = e4m3(code[n,k]) * scale[n/128, k/128]`. The scales are ue8m0 bytes in the official checkpoint and f32 in some
//! others; both are read, ue8m0 is written.

use super::{FormatError, amax, check_len, e4m3, ue8m0};

/// Side of a block.
pub const BLOCK: usize = 128;

/// A row of block scales, as bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockScales<'a> {
    /// One byte each.
    Ue8m0(&'a [u8]),
    /// Four little-endian bytes each.
    F32(&'a [u8]),
}

impl BlockScales<'_> {
    /// Number of scales.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Ue8m0(bytes) => bytes.len(),
            Self::F32(bytes) => bytes.len() / 4,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scale of one block.
    #[inline(always)]
    #[must_use]
    pub fn value(&self, index: usize) -> f32 {
        match self {
            Self::Ue8m0(bytes) => ue8m0::decode(bytes[index]),
            Self::F32(bytes) => {
                let b = &bytes[4 * index..4 * index + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
        }
    }

    /// The first scale that is negative or not finite, as an error. Zero is a block of zeros.
    ///
    /// # Errors
    /// [`FormatError::Scale`].
    pub fn check(&self) -> Result<(), FormatError> {
        let bad = |i: &usize| !(self.value(*i).is_finite() && self.value(*i) >= 0.0);
        match (0..self.len()).find(bad) {
            Some(index) => Err(FormatError::Scale { index }),
            None => Ok(()),
        }
    }
}

/// Dequantises one row of K codes; `scales` are the `ceil(K/128)` of its row of blocks.
#[inline(always)]
pub fn decode_row(codes: &[u8], scales: BlockScales<'_>, out: &mut [f32]) {
    debug_assert_eq!((codes.len(), scales.len()), (out.len(), out.len().div_ceil(BLOCK)));
    for (i, (codes, out)) in codes.chunks(BLOCK).zip(out.chunks_mut(BLOCK)).enumerate() {
        let scale = scales.value(i);
        e4m3::decode_into(codes, out);
        for o in out {
            *o *= scale;
        }
    }
}

/// Dequantises a matrix of `cols` columns; the number of rows follows from `out`.
///
/// # Errors
/// [`FormatError::Length`] or [`FormatError::Scale`].
pub fn dequantize(
    codes: &[u8],
    scales: BlockScales<'_>,
    cols: usize,
    out: &mut [f32],
) -> Result<(), FormatError> {
    let rows = out.len() / cols.max(1);
    check_len("FP8 matrix elements", rows * cols, out.len())?;
    check_len("FP8 code bytes", out.len(), codes.len())?;
    let per_row = cols.div_ceil(BLOCK);
    check_len("FP8 block scales", rows.div_ceil(BLOCK) * per_row, scales.len())?;
    scales.check()?;
    for (n, (codes, out)) in codes.chunks_exact(cols).zip(out.chunks_exact_mut(cols)).enumerate() {
        let first = n / BLOCK * per_row;
        let row = match scales {
            BlockScales::Ue8m0(b) => BlockScales::Ue8m0(&b[first..first + per_row]),
            BlockScales::F32(b) => BlockScales::F32(&b[4 * first..4 * (first + per_row)]),
        };
        decode_row(codes, row, out);
    }
    Ok(())
}

/// Quantises a matrix of `cols` columns; returns codes and ue8m0 scales. Rows may come in portions of whole blocks.
///
/// # Errors
/// [`FormatError::Length`] if the values are not whole rows.
pub fn quantize(values: &[f32], cols: usize) -> Result<(Vec<u8>, Vec<u8>), FormatError> {
    let rows = values.len() / cols.max(1);
    check_len("FP8 matrix elements", rows * cols, values.len())?;
    let mut codes = vec![0; values.len()];
    let mut scales = Vec::with_capacity(rows.div_ceil(BLOCK) * cols.div_ceil(BLOCK));
    for (values, codes) in values.chunks(BLOCK * cols).zip(codes.chunks_mut(BLOCK * cols)) {
        for first in (0..cols).step_by(BLOCK) {
            scales.push(quantize_block(values, codes, cols, first));
        }
    }
    Ok((codes, scales))
}

/// Quantises the block that starts at column `first` of up to 128 rows; returns its scale.
fn quantize_block(values: &[f32], codes: &mut [u8], cols: usize, first: usize) -> u8 {
    let span = first..cols.min(first + BLOCK);
    // A NaN magnitude must win, as in `amax`; f32::max would drop it.
    let row_max: Vec<f32> = values.chunks_exact(cols).map(|row| amax(&row[span.clone()])).collect();
    let scale = ue8m0::scale_ceil(amax(&row_max), e4m3::MAX, ue8m0::FP8_WEIGHT_AMAX_FLOOR);
    let inverse = ue8m0::reciprocal(scale);
    for (row, codes) in values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols)) {
        for (v, code) in row[span.clone()].iter().zip(&mut codes[span.clone()]) {
            *code = e4m3::encode(v * inverse);
        }
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, cols: usize) -> Vec<f32> {
        (0..rows * cols)
            .map(|i| ((i * 7919 % 1009) as f32 - 504.0) * crate::format::pow2((i / 3000) as i32 - 6))
            .collect()
    }

    #[test]
    fn partial_blocks_round_trip_within_half_a_step() {
        for (rows, cols) in [(1, 1), (128, 128), (130, 257), (5, 384), (300, 40)] {
            let values = matrix(rows, cols);
            let (codes, scales) = quantize(&values, cols).unwrap();
            assert_eq!(scales.len(), rows.div_ceil(128) * cols.div_ceil(128));
            let mut back = vec![0.0; values.len()];
            dequantize(&codes, BlockScales::Ue8m0(&scales), cols, &mut back).unwrap();
            for (i, (v, b)) in values.iter().zip(&back).enumerate() {
                let scale = ue8m0::decode(scales[i / cols / 128 * cols.div_ceil(128) + i % cols / 128]);
                assert!(
                    (v - b).abs() <= (v.abs() / 16.0).max(scale / 1024.0),
                    "{rows}x{cols} at {i}: {v} {b}"
                );
            }
        }
    }

    #[test]
    fn all_codes_and_both_scale_types_agree() {
        let codes: Vec<u8> = (0..=255).collect();
        for byte in 1..=254u8 {
            let f32_scales: Vec<u8> =
                [byte, byte].iter().flat_map(|b| ue8m0::decode(*b).to_le_bytes()).collect();
            let (mut a, mut b) = ([0.0; 256], [0.0; 256]);
            dequantize(&codes, BlockScales::Ue8m0(&[byte, byte]), 256, &mut a).unwrap();
            dequantize(&codes, BlockScales::F32(&f32_scales), 256, &mut b).unwrap();
            for ((a, b), code) in a.iter().zip(&b).zip(&codes) {
                let exact =
                    (float8::F8E4M3::from_bits(*code).to_f64() * 2f64.powi(i32::from(byte) - 127)) as f32;
                assert!(a.is_nan() == exact.is_nan() && (a.is_nan() || a.to_bits() == exact.to_bits()));
                assert_eq!(a.to_bits(), b.to_bits());
            }
        }
    }

    #[test]
    fn bad_scales_and_lengths_are_errors() {
        let out = &mut [0.0; 4];
        assert_eq!(
            dequantize(&[0; 4], BlockScales::Ue8m0(&[255]), 2, out),
            Err(FormatError::Scale { index: 0 })
        );
        for bad in [f32::NAN, f32::INFINITY, -1.0] {
            let checked = dequantize(&[0; 4], BlockScales::F32(&bad.to_le_bytes()), 2, out);
            assert_eq!(checked, Err(FormatError::Scale { index: 0 }));
        }
        assert!(dequantize(&[0; 3], BlockScales::Ue8m0(&[127]), 2, out).is_err());
        assert!(dequantize(&[0; 4], BlockScales::Ue8m0(&[127; 2]), 2, out).is_err());
        assert!(quantize(&[0.0; 5], 2).is_err());
    }

    #[test]
    fn a_nan_weight_becomes_a_nan_scale() {
        let mut values = matrix(130, 130);
        values[129 * 130 + 3] = f32::NAN;
        let (_, scales) = quantize(&values, 130).unwrap();
        assert_eq!(scales.iter().map(|s| *s == ue8m0::NAN).collect::<Vec<_>>(), [false, false, true, false]);
    }
}
