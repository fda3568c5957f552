//! MXFP4 weights: e2m1 codes with one ue8m0 scale for each 32 along K, the form of the original checkpoint's experts.

use super::{FormatError, amax, check_len, e2m1, ue8m0};

/// Elements that share one scale.
pub const BLOCK: usize = 32;

/// Dequantises whole blocks: `codes.len() * 2 == scales.len() * 32 == out.len()`.
#[inline(always)]
pub fn decode_into(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    debug_assert_eq!((codes.len() * 2, scales.len() * BLOCK), (out.len(), out.len()));
    let blocks =
        codes.as_chunks::<8>().0.chunks_exact(2).zip(scales).zip(out.as_chunks_mut().0.chunks_exact_mut(2));
    for ((codes, scale), out) in blocks {
        let scale = ue8m0::decode(*scale);
        for (codes, out) in codes.iter().zip(out) {
            let (codes, out): (_, &mut [f32; 16]) = (e2m1::unpack_16(codes), out);
            for i in 0..16 {
                out[i] = e2m1::decode(codes[i]) * scale;
            }
        }
    }
}

/// [`decode_into`] for data from a file: lengths are checked, and a NaN scale is an error.
///
/// # Errors
/// [`FormatError::Length`], [`FormatError::Multiple`], [`FormatError::Scale`].
pub fn dequantize(codes: &[u8], scales: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    check_blocks(out.len())?;
    check_len("MXFP4 code bytes", out.len() / 2, codes.len())?;
    check_len("MXFP4 scale bytes", out.len() / BLOCK, scales.len())?;
    check_scales(scales)?;
    decode_into(codes, scales, out);
    Ok(())
}

/// The first NaN scale, if any, as an error.
///
/// # Errors
/// [`FormatError::Scale`].
pub fn check_scales(scales: &[u8]) -> Result<(), FormatError> {
    match scales.iter().position(|s| *s == ue8m0::NAN) {
        Some(index) => Err(FormatError::Scale { index }),
        None => Ok(()),
    }
}

/// Quantises whole blocks; returns codes and scales.
///
/// # Errors
/// [`FormatError::Multiple`] if the values are not whole blocks.
pub fn quantize(values: &[f32]) -> Result<(Vec<u8>, Vec<u8>), FormatError> {
    check_blocks(values.len())?;
    let (mut codes, mut scales) = (vec![0; values.len() / 2], vec![0; values.len() / BLOCK]);
    encode_into(values, &mut codes, &mut scales);
    Ok((codes, scales))
}

/// Quantises whole blocks: scale `2^ceil(log2(amax/6))`, elements to the nearest even code.
#[inline(always)]
pub fn encode_into(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    debug_assert_eq!((codes.len() * 2, scales.len() * BLOCK), (values.len(), values.len()));
    let blocks = values.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK / 2)).zip(scales);
    for ((values, codes), scale) in blocks {
        *scale = ue8m0::scale_fp4(amax(values));
        let inverse = ue8m0::reciprocal(*scale);
        for (pair, code) in values.chunks_exact(2).zip(codes) {
            *code = e2m1::pack(e2m1::encode(pair[0] * inverse), e2m1::encode(pair[1] * inverse));
        }
    }
}

fn check_blocks(len: usize) -> Result<(), FormatError> {
    if len.is_multiple_of(BLOCK) {
        Ok(())
    } else {
        Err(FormatError::Multiple { what: "MXFP4 row length", block: BLOCK, found: len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use float4::{E8M0, F4E2M1, MXFP4Block};

    /// hazards.md Q09: every code with every scale byte, against a table and against the second oracle.
    #[test]
    fn q09_all_codes_and_scales_against_a_table() {
        let codes: Vec<u8> = (0..16u8).map(|i| e2m1::pack(i, 15 - i)).collect();
        for byte in 0..=255u8 {
            let mut out = [0.0; BLOCK];
            decode_into(&codes, &[byte], &mut out);
            assert_eq!(dequantize(&codes, &[byte], &mut out).is_err(), byte == 255);
            let elements: [F4E2M1; BLOCK] = std::array::from_fn(|i| {
                F4E2M1::from_bits(if i % 2 == 0 { i as u8 / 2 } else { 15 - i as u8 / 2 })
            });
            let second = MXFP4Block::from_f32_slice(elements, E8M0::from_bits(byte)).to_f32_array();
            for (i, v) in out.iter().enumerate() {
                let table = if byte == 255 { f64::NAN } else { 2f64.powi(i32::from(byte) - 127) };
                let expected = (elements[i].to_f64() * table) as f32;
                assert!(v.to_bits() == expected.to_bits() || (v.is_nan() && expected.is_nan()), "{i} {byte}");
                assert!(byte == 255 || *v == second[i], "second oracle, {i} {byte}");
            }
        }
    }

    #[test]
    fn representable_blocks_survive_and_the_largest_value_fits() {
        for exponent in [-120, -3, 0, 90] {
            let values: Vec<f32> =
                (0..BLOCK).map(|i| e2m1::VALUES[i % 16] * crate::format::pow2(exponent)).collect();
            let (codes, scales) = quantize(&values).unwrap();
            let mut back = [0.0; BLOCK];
            dequantize(&codes, &scales, &mut back).unwrap();
            assert_eq!(back.as_slice(), values);
            assert_eq!(i32::from(scales[0]) - 127, exponent);
        }
    }

    #[test]
    fn zeros_nan_and_bad_lengths_are_defined() {
        let (codes, scales) = quantize(&[0.0; BLOCK]).unwrap();
        assert_eq!((codes.as_slice(), scales.as_slice()), ([0; 16].as_slice(), [1].as_slice()));
        let mut values = [1.0; BLOCK];
        values[31] = f32::NAN;
        assert_eq!(quantize(&values).unwrap().1, [ue8m0::NAN]);
        assert!(quantize(&values[..31]).is_err());
        assert!(dequantize(&codes, &[127, 127], &mut [0.0; BLOCK]).is_err());
    }
}
