//! ue8m0, the scale byte of MXFP4, of FP8 blocks and of the cache rows: byte `b` is `2^(b-127)`, `0xFF` is NaN.
//!
//! Scales are chosen by one rule everywhere: the smallest power of two that keeps the block's largest magnitude within the
//! element format ("rounded up"), with a floor that keeps the scale a normal number.

/// The NaN byte.
pub const NAN: u8 = 0xff;
/// Byte of `2^127`, the largest scale.
pub const MAX: u8 = 0xfe;

/// Smallest magnitude that the FP8 rounding of cache rows takes for a block's maximum.
pub const FP8_AMAX_FLOOR: f32 = 1e-4;
/// The same for FP4 blocks: the smallest for which the scale is a normal f32.
pub const FP4_AMAX_FLOOR: f32 = 6.0 * super::pow2(-126);
/// The same for FP8 weights, whose maxima may be tiny on purpose.
pub const FP8_WEIGHT_AMAX_FLOOR: f32 = 448.0 * super::pow2(-126);

/// Value of a scale byte.
#[inline(always)]
#[must_use]
pub const fn decode(byte: u8) -> f32 {
    match byte {
        0 => super::pow2(-127),
        NAN => f32::NAN,
        _ => f32::from_bits((byte as u32) << 23),
    }
}

/// Smallest `e` with `2^e >= value`, for positive normal values; 128 for those above `2^127`.
#[inline(always)]
#[must_use]
pub const fn exponent_ceil(value: f32) -> i32 {
    ((value.to_bits() + 0x7f_ffff) >> 23) as i32 - 127
}

/// Byte of the smallest power of two `s` with `amax <= limit * s`, where `amax` counts as at least `floor`.
///
/// `limit` is the largest value of the element format, `floor` at least `limit * 2^-126`. Never NaN for a number (infinity
/// takes the largest scale), always NaN for NaN. The quotient is exact enough: a correctly rounded `amax / 448` or `amax / 6`
/// is a power of two only if the true one is.
#[inline(always)]
#[must_use]
pub fn scale_ceil(amax: f32, limit: f32, floor: f32) -> u8 {
    if amax.is_nan() {
        return NAN;
    }
    let exponent = exponent_ceil(amax.max(floor) / limit);
    (exponent + 127).clamp(1, i32::from(MAX)) as u8
}

/// [`scale_ceil`] for an e4m3 block of a cache row.
#[inline(always)]
#[must_use]
pub fn scale_fp8(amax: f32) -> u8 {
    scale_ceil(amax, super::e4m3::MAX, FP8_AMAX_FLOOR)
}

/// [`scale_ceil`] for an e2m1 block.
#[inline(always)]
#[must_use]
pub fn scale_fp4(amax: f32) -> u8 {
    scale_ceil(amax, super::e2m1::MAX, FP4_AMAX_FLOOR)
}

/// Reciprocal of a scale byte below 254, exact; for 254 the subnormal `2^-127`.
#[inline(always)]
#[must_use]
pub const fn reciprocal(byte: u8) -> f32 {
    if byte == NAN { f32::NAN } else { super::pow2(127 - byte as i32) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use float4::E8M0;

    #[test]
    fn all_bytes_decode_as_the_second_oracle() {
        for byte in 0..NAN {
            assert_eq!(f64::from(decode(byte)), E8M0::from_bits(byte).to_f64(), "byte {byte}");
            assert_eq!(f64::from(decode(byte)), 2f64.powi(i32::from(byte) - 127));
            assert_eq!(decode(byte) * reciprocal(byte), 1.0, "byte {byte}");
        }
        assert!(decode(NAN).is_nan() && reciprocal(NAN).is_nan());
    }

    /// The rule in f64, where quotient and comparison are exact: search upwards from the smallest scale.
    fn by_search(amax: f32, limit: f32, floor: f32) -> u8 {
        let amax = f64::from(amax.max(floor));
        (1..=MAX).find(|b| amax <= f64::from(limit) * f64::from(decode(*b))).unwrap_or(MAX)
    }

    /// hazards.md Q08.
    #[test]
    fn q08_scales_are_powers_of_two_rounded_up_and_never_nan() {
        let mut inputs =
            vec![0.0, pow2_of(-149), pow2_of(-127), 448.0, 448.0 * (1.0 + pow2_of(-8)), 3.4e38, f32::MAX];
        for k in -125..126 {
            for base in [6.0f32, 448.0] {
                let v = base * pow2_of(k.min(119));
                inputs.extend([v.next_down(), v, v.next_up()]);
            }
        }
        for amax in inputs {
            let cases = [
                (scale_fp8(amax), 448.0, FP8_AMAX_FLOOR),
                (scale_fp4(amax), 6.0, FP4_AMAX_FLOOR),
                (scale_ceil(amax, 448.0, FP8_WEIGHT_AMAX_FLOOR), 448.0, FP8_WEIGHT_AMAX_FLOOR),
            ];
            for (byte, limit, floor) in cases {
                assert_eq!(byte, by_search(amax, limit, floor), "amax {amax:e} limit {limit}");
                assert!(byte != NAN && decode(byte).to_bits() & 0x7f_ffff == 0);
            }
        }
        assert_eq!((scale_fp8(f32::INFINITY), scale_fp8(f32::NAN)), (MAX, NAN));
    }

    fn pow2_of(e: i32) -> f32 {
        crate::format::pow2(e)
    }
}
