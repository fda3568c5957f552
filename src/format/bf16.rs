//! bfloat16 as little-endian bytes, the form it has in files and pools.
//!
//! The crate `half` owns the format; this adds only the byte-slice loops, which must not depend on alignment.

use half::bf16;

/// Rounds to the nearest bfloat16, ties to even, and back.
#[inline(always)]
#[must_use]
pub fn round(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// Rounds each element in place.
pub fn round_slice(values: &mut [f32]) {
    for v in values {
        *v = round(*v);
    }
}

/// Decodes `out.len()` values from twice as many bytes.
#[inline(always)]
pub fn decode_into(bytes: &[u8], out: &mut [f32]) {
    debug_assert_eq!(bytes.len(), 2 * out.len());
    for (pair, o) in bytes.chunks_exact(2).zip(out) {
        *o = f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    }
}

/// Encodes to the nearest, ties to even.
#[inline(always)]
pub fn encode_into(values: &[f32], bytes: &mut [u8]) {
    debug_assert_eq!(bytes.len(), 2 * values.len());
    for (pair, v) in bytes.chunks_exact_mut(2).zip(values) {
        pair.copy_from_slice(&bf16::from_f32(*v).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut values = vec![0.0; 65536];
        decode_into(&bytes, &mut values);
        let mut back = vec![0; bytes.len()];
        encode_into(&values, &mut back);
        for (i, v) in values.iter().enumerate() {
            let code = u16::from_le_bytes([back[2 * i], back[2 * i + 1]]);
            assert!(code == i as u16 || v.is_nan(), "code {i:#x} came back as {code:#x}");
        }
    }

    #[test]
    fn rounds_to_even_at_the_midpoint() {
        assert_eq!(round(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(round(1.0 + 3.0 / 256.0), 1.0 + 1.0 / 64.0);
    }
}
