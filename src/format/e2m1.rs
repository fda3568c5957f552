//! e2m1, the 4-bit float of MXFP4 and NVFP4: a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
//!
//! Two codes share a byte, the even element in the low nibble. There is no NaN and no infinity: both saturate (NaN to +6, as
//! the hardware conversion does), so block formats carry a NaN in their scale instead.

/// Largest magnitude.
pub const MAX: f32 = 6.0;

/// Value of each code.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Value of the code in the low four bits.
///
/// Computed, not looked up, so that loops over [`unpack_16`] vectorise: codes 2..8 are the top bits of an f32 with another
/// exponent bias, codes 0 and 1 are its two subnormals.
#[inline(always)]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    let magnitude = (code & 7) as u32;
    let normal = (magnitude << 22) + (126 << 23);
    let subnormal = (magnitude as f32 * 0.5).to_bits();
    let bits = if magnitude < 2 { subnormal } else { normal };
    f32::from_bits(bits | (((code & 8) as u32) << 28))
}

/// Nearest code, ties to the even code; magnitudes above 6, infinities and NaN saturate.
#[inline(always)]
#[must_use]
pub fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return 7;
    }
    let m = value.abs();
    // A tie goes to the even code: the thresholds below an even code belong to it, those below an odd code do not.
    let code = u8::from(m > 0.25)
        + u8::from(m >= 0.75)
        + u8::from(m > 1.25)
        + u8::from(m >= 1.75)
        + u8::from(m > 2.5)
        + u8::from(m >= 3.5)
        + u8::from(m > 5.0);
    code | (((value.to_bits() >> 28) & 8) as u8)
}

/// Two codes in one byte.
#[inline(always)]
#[must_use]
pub const fn pack(even: u8, odd: u8) -> u8 {
    (even & 15) | (odd << 4)
}

/// The two codes of one byte: even element first.
#[inline(always)]
#[must_use]
pub const fn unpack(byte: u8) -> (u8, u8) {
    (byte & 15, byte >> 4)
}

/// The sixteen codes of eight bytes. With fixed sizes, and one loop that decodes and scales, block formats vectorise; with
/// short slices, or calls such as `array::map`, they do not.
#[inline(always)]
#[must_use]
pub fn unpack_16(packed: &[u8; 8]) -> [u8; 16] {
    let mut codes = [0; 16];
    for i in 0..8 {
        (codes[2 * i], codes[2 * i + 1]) = unpack(packed[i]);
    }
    codes
}

/// Encodes two values into each byte.
#[inline(always)]
pub fn encode_into(values: &[f32], packed: &mut [u8]) {
    debug_assert_eq!(2 * packed.len(), values.len());
    for (pair, byte) in values.chunks_exact(2).zip(packed) {
        *byte = pack(encode(pair[0]), encode(pair[1]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use float4::F4E2M1;

    #[test]
    fn all_codes_decode_to_the_table_and_to_the_second_oracle() {
        for code in 0..16u8 {
            let second = F4E2M1::from_bits(code).to_f64();
            assert_eq!(f64::from(decode(code)).to_bits(), second.to_bits(), "code {code}");
            assert_eq!(encode(decode(code)), code);
        }
    }

    /// Straight from the definition: the closest value, the even code of two equally close ones.
    fn nearest(value: f64) -> u8 {
        let distance = |c: &u8| (f64::from(VALUES[usize::from(*c)]) - value.abs()).abs();
        let best = (0..8u8).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | if value.is_sign_negative() { 8 } else { 0 }
    }

    #[test]
    fn encode_is_nearest_even_around_every_value_and_midpoint() {
        for step in 0..=64 {
            let centre = step as f32 * 0.125;
            for v in [centre.next_down(), centre, centre.next_up()] {
                assert_eq!(encode(v), nearest(f64::from(v)), "{v}");
                assert_eq!(encode(-v), nearest(f64::from(-v)), "{}", -v);
            }
        }
    }

    #[test]
    fn encode_agrees_with_the_second_oracle_off_the_midpoints() {
        for step in 0..4000u32 {
            let v = step as f32 * 0.002 + 0.0007 - 4.0;
            assert_eq!(encode(v), F4E2M1::from_f64(f64::from(v)).to_bits(), "{v}");
        }
    }

    #[test]
    fn what_has_no_code_saturates() {
        assert_eq!((encode(f32::INFINITY), encode(f32::NEG_INFINITY), encode(f32::NAN)), (7, 15, 7));
        assert_eq!((encode(6.1), encode(-1e30)), (7, 15));
    }

    #[test]
    fn slices_put_the_even_element_in_the_low_nibble() {
        let values: Vec<f32> =
            (0..256u32).flat_map(|b| [VALUES[(b & 15) as usize], VALUES[(b >> 4) as usize]]).collect();
        let mut packed = vec![0; 256];
        encode_into(&values, &mut packed);
        assert!(packed.iter().enumerate().all(|(i, b)| i == usize::from(*b)));
        let mut back = vec![0.0; 512];
        for (packed, back) in packed.as_chunks().0.iter().zip(back.as_chunks_mut::<16>().0) {
            *back = unpack_16(packed).map(decode);
        }
        assert!(back.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_eq!(unpack(pack(3, 12)), (3, 12));
    }
}
