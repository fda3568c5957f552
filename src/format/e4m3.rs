//! e4m3 in its finite-only form (`float8_e4m3fn`): bias 7, largest value 448, no infinities, NaN is `0x7F` and `0xFF`.

/// Largest magnitude.
pub const MAX: f32 = 448.0;
/// The NaN that [`encode`] writes.
pub const NAN: u8 = 0x7f;
/// The smallest positive value, `2^-9`.
pub const MIN_SUBNORMAL: f32 = 1.0 / 512.0;

/// Value of each code, for scalar readers; slices decode faster with [`decode_into`].
pub static VALUES: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = decode(code as u8);
        code += 1;
    }
    table
};

/// Value of a code. Branch-free but for selects, so that loops over it vectorise.
#[inline(always)]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    let magnitude = (code & 0x7f) as u32;
    let normal = (magnitude << 20) + (120 << 23);
    let subnormal = (magnitude as f32 * MIN_SUBNORMAL).to_bits();
    let finite = if magnitude < 8 { subnormal } else { normal };
    let bits = if magnitude == 0x7f { 0x7fc0_0000 } else { finite };
    f32::from_bits(bits | (((code & 0x80) as u32) << 24))
}

/// Nearest code, ties to even; magnitudes above 448 and infinities saturate, NaN becomes [`NAN`].
#[inline(always)]
#[must_use]
pub fn encode(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Adding 2^14 leaves the value's multiple of 2^-9 in the low bits, rounded to even by the addition itself.
    let subnormal = (f32::from_bits(magnitude) + 16384.0).to_bits() - 16384f32.to_bits();
    let rounded = (magnitude + 0x7_ffff + ((magnitude >> 20) & 1)) >> 20;
    let normal = rounded.wrapping_sub(120 << 3);
    let small = magnitude < (121 << 23);
    let code = if small { subnormal } else { normal.min(0x7e) };
    let code = if magnitude > 0x7f80_0000 { u32::from(NAN) } else { code | ((bits >> 24) & 0x80) };
    code as u8
}

/// Decodes one value from each byte.
#[inline(always)]
pub fn decode_into(codes: &[u8], out: &mut [f32]) {
    debug_assert_eq!(codes.len(), out.len());
    for (code, o) in codes.iter().zip(out) {
        *o = decode(*code);
    }
}

/// Encodes one value into each byte.
#[inline(always)]
pub fn encode_into(values: &[f32], codes: &mut [u8]) {
    debug_assert_eq!(codes.len(), values.len());
    for (v, code) in values.iter().zip(codes) {
        *code = encode(*v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use float8::F8E4M3;

    #[test]
    fn all_codes_decode_as_the_second_oracle_and_come_back() {
        for code in 0..=255u8 {
            let (ours, second) = (decode(code), F8E4M3::from_bits(code).to_f32());
            if code & 0x7f == 0x7f {
                assert!(ours.is_nan() && second.is_nan());
                assert_eq!(encode(ours), NAN);
            } else {
                assert_eq!(ours.to_bits(), second.to_bits(), "code {code:#x}");
                assert_eq!(encode(ours), code);
            }
            assert_eq!(VALUES[usize::from(code)].to_bits(), ours.to_bits());
        }
    }

    /// The code of the closest value by exhaustive search, the even code of two equally close ones.
    fn nearest(value: f32) -> u8 {
        let distance = |c: &u8| (f64::from(decode(*c)) - f64::from(value.abs())).abs();
        let best = (0..0x7fu8).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn encode_is_nearest_even_at_every_value_midpoint_and_their_neighbours() {
        for code in 0..0x7eu8 {
            let (a, b) = (decode(code), decode(code + 1));
            let middle = (a + b) / 2.0;
            for v in [a, a.next_up(), middle.next_down(), middle, middle.next_up(), b.next_down()] {
                assert_eq!(encode(v), nearest(v), "{v:e}");
                assert_eq!(encode(-v), nearest(-v), "{:e}", -v);
            }
        }
    }

    #[test]
    fn encode_agrees_with_the_second_oracle_over_the_bf16_values() {
        for top in 0..=u16::MAX {
            let v = f32::from_bits(u32::from(top) << 16);
            let second = F8E4M3::from_f32(v);
            if v.is_nan() {
                assert_eq!(encode(v), NAN);
            } else {
                assert_eq!(encode(v), second.to_bits(), "{v:e}");
            }
        }
    }

    #[test]
    fn large_values_saturate() {
        for v in [448.0, 449.0, 464.0, 480.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!((encode(v), encode(-v)), (0x7e, 0xfe), "{v}");
        }
    }
}
