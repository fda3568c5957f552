//! NVFP4 weights: e2m1 codes, an e4m3 scale for each 16 along K, one f32 for the whole matrix.
//!
//! `W = (e2m1 * e4m3) * scale2`, multiplied in this order in f32: the first product is exact (2 + 4 significant bits), so a
//! weight has a single rounding. Two ways in: [`quantize`] computes both scale levels from the values, as ModelOpt does by
//! default; [`cast_scales`] rewrites the scales of an MXFP4 matrix and keeps its codes, without loss.

use super::{FormatError, amax, check_len, e2m1, e4m3, pow2, ue8m0};

/// Elements that share one scale.
pub const BLOCK: usize = 16;

/// One quantised matrix (or part of one).
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Two codes a byte.
    pub codes: Vec<u8>,
    /// One e4m3 byte for each [`BLOCK`].
    pub scales: Vec<u8>,
    pub scale2: f32,
}

/// Dequantises whole blocks: `codes.len() * 2 == scales.len() * 16 == out.len()`.
#[inline(always)]
pub fn decode_into(codes: &[u8], scales: &[u8], scale2: f32, out: &mut [f32]) {
    debug_assert_eq!((codes.len() * 2, scales.len() * BLOCK), (out.len(), out.len()));
    let blocks = codes.as_chunks().0.iter().zip(scales).zip(out.as_chunks_mut::<BLOCK>().0);
    for ((codes, scale), out) in blocks {
        let scale = e4m3::decode(*scale);
        let codes = e2m1::unpack_16(codes);
        for i in 0..BLOCK {
            out[i] = (e2m1::decode(codes[i]) * scale) * scale2;
        }
    }
}

/// [`decode_into`] for data from a file: lengths are checked, and a NaN scale is an error.
///
/// # Errors
/// [`FormatError::Length`], [`FormatError::Multiple`], [`FormatError::Scale`].
pub fn dequantize(codes: &[u8], scales: &[u8], scale2: f32, out: &mut [f32]) -> Result<(), FormatError> {
    check_blocks(out.len())?;
    check_len("NVFP4 code bytes", out.len() / 2, codes.len())?;
    check_len("NVFP4 scale bytes", out.len() / BLOCK, scales.len())?;
    check_scales(scales)?;
    decode_into(codes, scales, scale2, out);
    Ok(())
}

/// The first scale that is NaN or negative, if any, as an error.
///
/// # Errors
/// [`FormatError::Scale`].
pub fn check_scales(scales: &[u8]) -> Result<(), FormatError> {
    match scales.iter().position(|s| *s >= e4m3::NAN) {
        Some(index) => Err(FormatError::Scale { index }),
        None => Ok(()),
    }
}

/// Second-level scale for a matrix whose largest magnitude is `amax`: `amax / (6 * 448)`; 1 for an all-zero matrix, whose
/// values are then defined zeros.
#[must_use]
pub fn scale2_for(amax: f32) -> f32 {
    let scale2 = amax / (e2m1::MAX * e4m3::MAX);
    if scale2 == 0.0 { 1.0 } else { scale2 }
}

/// Quantises whole blocks with a given second-level scale; gate and up projection of one expert share theirs.
///
/// # Errors
/// [`FormatError::Multiple`] if the values are not whole blocks.
pub fn quantize(values: &[f32], scale2: f32) -> Result<Quantized, FormatError> {
    check_blocks(values.len())?;
    let mut q = Quantized { codes: vec![0; values.len() / 2], scales: Vec::new(), scale2 };
    for (block, codes) in values.chunks_exact(BLOCK).zip(q.codes.chunks_exact_mut(BLOCK / 2)) {
        q.scales.push(encode_block(block, scale2, codes));
    }
    Ok(q)
}

/// Writes a block's codes and returns its scale byte.
fn encode_block(values: &[f32], scale2: f32, codes: &mut [u8]) -> u8 {
    let largest = amax(values);
    let wanted = if largest == 0.0 { 1.0 } else { largest / (e2m1::MAX * scale2) };
    let byte =
        e4m3::encode(if wanted.is_nan() { wanted } else { wanted.clamp(e4m3::MIN_SUBNORMAL, e4m3::MAX) });
    let scale = e4m3::decode(byte) * scale2;
    for (pair, code) in values.chunks_exact(2).zip(codes) {
        *code = e2m1::pack(e2m1::encode(pair[0] / scale), e2m1::encode(pair[1] / scale));
    }
    byte
}

/// The largest exponent among ue8m0 scales; -127 for none.
#[must_use]
pub fn largest_exponent(mx_scales: &[u8]) -> i32 {
    mx_scales.iter().map(|b| i32::from(*b) - 127).max().unwrap_or(-127)
}

/// Turns the scales of an MXFP4 matrix into NVFP4 scales, so that the codes stay as they are and every value is unchanged.
///
/// `largest` is [`largest_exponent`] over all matrices that share the second-level scale `2^(largest - 8)`, which is
/// returned with the scales. A block of zeros may have any scale and takes one inside the window.
///
/// # Errors
/// [`FormatError::NotLossless`] if a block's scale is more than 17 powers of two below the largest; lengths; NaN scales.
pub fn cast_scales(mx_codes: &[u8], mx_scales: &[u8], largest: i32) -> Result<(f32, Vec<u8>), FormatError> {
    check_len("MXFP4 code bytes", mx_scales.len() * BLOCK, mx_codes.len())?;
    super::mxfp4::check_scales(mx_scales)?;
    let shift = largest - 8;
    let mut scales = Vec::with_capacity(2 * mx_scales.len());
    for (block, (byte, codes)) in mx_scales.iter().zip(mx_codes.chunks_exact(BLOCK)).enumerate() {
        let exponent = i32::from(*byte) - 127;
        let zeros = codes.iter().all(|c| c & 0x77 == 0);
        if exponent - shift < -9 && !zeros {
            return Err(FormatError::NotLossless { block, exponent, largest });
        }
        let scale = e4m3::encode(pow2((exponent - shift).clamp(-9, 8)));
        scales.extend([scale, scale]);
    }
    Ok((pow2(shift), scales))
}

/// The inverse of [`cast_scales`]: ue8m0 scales, if every pair of neighbouring scales is one power of two and so is `scale2`.
#[must_use]
pub fn as_mxfp4_scales(scales: &[u8], scale2: f32) -> Option<Vec<u8>> {
    let shift = power_of_two(scale2)?;
    let pairs = scales.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| {
            let exponent = power_of_two(e4m3::decode(pair[0])).filter(|_| pair[0] == pair[1])? + shift;
            u8::try_from(exponent + 127).ok().filter(|b| *b != ue8m0::NAN)
        })
        .collect()
}

/// `e` if the value is exactly `2^e`.
#[must_use]
pub fn power_of_two(value: f32) -> Option<i32> {
    if !value.is_finite() || value <= 0.0 {
        return None;
    }
    let bits = f64::from(value).to_bits();
    (bits & ((1 << 52) - 1) == 0).then_some((bits >> 52) as i32 - 1023)
}

fn check_blocks(len: usize) -> Result<(), FormatError> {
    if len.is_multiple_of(BLOCK) {
        Ok(())
    } else {
        Err(FormatError::Multiple { what: "NVFP4 row length", block: BLOCK, found: len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::mxfp4;

    /// hazards.md Q09: every code with every scale byte, -0 and subnormal scales included.
    #[test]
    fn q09_all_codes_and_scales_against_a_table() {
        let codes: Vec<u8> = (0..8u8).map(|i| e2m1::pack(2 * i, 2 * i + 1)).collect();
        for byte in 0..=255u8 {
            let mut out = [0.0; BLOCK];
            decode_into(&codes, &[byte], 3.7, &mut out);
            for (v, code) in out.iter().zip(0u8..) {
                let scale = float8::F8E4M3::from_bits(byte).to_f32();
                let expected = (e2m1::VALUES[usize::from(code)] * scale) * 3.7;
                assert!(
                    v.to_bits() == expected.to_bits() || (v.is_nan() && expected.is_nan()),
                    "{code} {byte}"
                );
            }
            let checked = dequantize(&codes, &[byte], 3.7, &mut out);
            assert_eq!(checked.is_err(), byte >= 0x7f, "scale {byte:#x}");
        }
    }

    #[test]
    fn second_level_scale_multiplies() {
        let mut out = [0.0; BLOCK];
        decode_into(&[0x22; 8], &[0x38], 3.7, &mut out);
        assert_eq!(out, [3.7; BLOCK]);
    }

    #[test]
    fn quantised_values_are_within_half_a_step_and_zeros_stay_zeros() {
        let mut values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() * 1.5f32.powi(i / 8)).collect();
        values.extend([0.0; BLOCK]);
        let q = quantize(&values, scale2_for(amax(&values))).unwrap();
        let mut back = vec![0.0; values.len()];
        dequantize(&q.codes, &q.scales, q.scale2, &mut back).unwrap();
        for ((block, back), scale) in values.chunks(BLOCK).zip(back.chunks(BLOCK)).zip(&q.scales) {
            let step = e4m3::decode(*scale) * q.scale2;
            for (v, b) in block.iter().zip(back) {
                // Half the widest gap (4 to 6), or the overshoot of a scale that was rounded down by up to 1/16.
                assert!((v - b).abs() <= step * 1.01, "{v} became {b} with step {step}");
            }
        }
        assert_eq!(q.scales.last(), Some(&0x38), "a block of zeros has scale 1");
        assert!(back[64..].iter().all(|v| *v == 0.0));
    }

    #[test]
    fn an_all_zero_matrix_is_defined() {
        let q = quantize(&[0.0; 32], scale2_for(0.0)).unwrap();
        let mut back = [1.0; 32];
        dequantize(&q.codes, &q.scales, q.scale2, &mut back).unwrap();
        assert_eq!(back, [0.0; 32]);
    }

    #[test]
    fn nan_weights_become_a_nan_scale() {
        let mut values = [1.0; BLOCK];
        values[3] = f32::NAN;
        let q = quantize(&values, 1.0).unwrap();
        assert_eq!(check_scales(&q.scales), Err(FormatError::Scale { index: 0 }));
    }

    #[test]
    fn cast_from_mxfp4_is_exact_for_every_exponent_in_the_window() {
        for largest in [-127, -100, 0, 40, 119] {
            let mx_scales: Vec<u8> = (0..=17).map(|d| (largest - d + 127).max(0) as u8).collect();
            let codes: Vec<u8> = (0..mx_scales.len() * BLOCK).map(|i| (i * 29) as u8).collect();
            let (scale2, scales) = cast_scales(&codes, &mx_scales, largest_exponent(&mx_scales)).unwrap();
            let (mut nv, mut mx) = (vec![0.0; codes.len() * 2], vec![0.0; codes.len() * 2]);
            dequantize(&codes, &scales, scale2, &mut nv).unwrap();
            mxfp4::dequantize(&codes, &mx_scales, &mut mx).unwrap();
            assert!(nv.iter().zip(&mx).all(|(a, b)| a.to_bits() == b.to_bits()), "largest {largest}");
            assert_eq!(as_mxfp4_scales(&scales, scale2), Some(mx_scales));
        }
    }

    #[test]
    fn cast_refuses_what_it_would_lose() {
        let mut codes = vec![0x11; 2 * BLOCK];
        let refused = cast_scales(&codes, &[127, 127 - 18], 0);
        assert_eq!(refused, Err(FormatError::NotLossless { block: 1, exponent: -18, largest: 0 }));
        codes[BLOCK..].fill(0x80);
        assert!(cast_scales(&codes, &[127, 0], 0).is_ok(), "a block of zeros loses nothing");
        assert_eq!(cast_scales(&codes, &[127, 255], 0), Err(FormatError::Scale { index: 1 }));
    }

    #[test]
    fn general_scales_are_not_taken_for_mxfp4() {
        assert_eq!(as_mxfp4_scales(&[0x39, 0x39], 1.0), None);
        assert_eq!(as_mxfp4_scales(&[0x38, 0x40], 1.0), None);
        assert_eq!(as_mxfp4_scales(&[0x38, 0x38], 3.7), None);
        assert_eq!(as_mxfp4_scales(&[0x38, 0x38], 0.5), Some(vec![126]));
    }
}
