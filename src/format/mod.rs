//! Number formats and packing: how each stored byte becomes a value and back.
//!
//! Pure functions over slices: no I/O, no devices, no state. Everything that stores numbers (checkpoints, cache pools, the
//! quantiser) and everything that reads them goes through here, so that a format has one definition, which the CUDA headers
//! mirror bit for bit. What does *not* live here: matrix products, and deciding which tensor has which format.
//!
//! | module | what | block | scale |
//! |---|---|---|---|
//! | [`e2m1`] | 4-bit float, max 6, two per byte | | |
//! | [`e4m3`] | 8-bit float (`e4m3fn`), max 448 | | |
//! | [`ue8m0`] | power-of-two scale byte | | |
//! | [`bf16`] | bfloat16 slices | | |
//! | [`nvfp4`] | e2m1 weights | 1x16 | e4m3, and one f32 per matrix |
//! | [`mxfp4`] | e2m1 weights | 1x32 | ue8m0 |
//! | [`fp8_block`] | e4m3 weights | 128x128 | ue8m0 or f32 |
//! | [`kv_row`] | rows of the KV pools | 1x64 | ue8m0 |
//! | [`index_row`] | index keys and index queries | 1x128 or 1x32 | f32 or ue8m0 |
//! | [`hadamard`], [`rope`] | the two rotations of the model | | |
//!
//! Conventions: round to nearest, ties to even; saturate instead of overflowing; scales that are chosen here are powers of
//! two rounded up, so a block never exceeds its element format. A NaN stays visible: it becomes a NaN element where the
//! format has one, else a NaN scale.

#![forbid(unsafe_code)]

pub mod bf16;
pub mod e2m1;
pub mod e4m3;
pub mod fp8_block;
pub mod hadamard;
pub mod index_row;
pub mod kv_row;
pub mod mxfp4;
pub mod nvfp4;
pub mod rope;
pub mod ue8m0;

/// Why bytes do not form the block-scaled data they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A slice has the wrong length.
    #[error("{what}: expected {expected}, found {found}")]
    Length { what: &'static str, expected: usize, found: usize },
    /// A dimension is not a multiple of the block.
    #[error("{what} must be a multiple of {block}, found {found}")]
    Multiple { what: &'static str, block: usize, found: usize },
    /// A scale is NaN, negative or infinite, so the block has no value.
    #[error("scale {index} is not a finite number from 0 up")]
    Scale { index: usize },
    /// MXFP4 scales span more powers of two than NVFP4 scales can hold.
    #[error(
        "the scale of block {block} is 2^{exponent}, more than 17 powers of two below the largest, 2^{largest}"
    )]
    NotLossless { block: usize, exponent: i32, largest: i32 },
}

/// Checks one length; a readable one-liner at the head of the functions that take bytes from files.
pub(crate) fn check_len(what: &'static str, expected: usize, found: usize) -> Result<(), FormatError> {
    if expected == found { Ok(()) } else { Err(FormatError::Length { what, expected, found }) }
}

/// Largest magnitude of a slice, 0 for an empty one; NaN if any element is NaN.
///
/// Magnitudes order like their bit patterns, and NaN above infinity, so this is an integer maximum, which vectorises.
#[inline(always)]
#[must_use]
pub fn amax(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff)))
}

/// `2^exponent` for exponents in `-149..=127`, subnormals included.
#[inline(always)]
#[must_use]
pub const fn pow2(exponent: i32) -> f32 {
    debug_assert!(exponent >= -149 && exponent <= 127);
    if exponent >= -126 {
        f32::from_bits(((exponent + 127) as u32) << 23)
    } else {
        f32::from_bits(1 << (exponent + 149))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amax_sees_every_sign_and_keeps_nan() {
        assert_eq!(amax(&[]), 0.0);
        assert_eq!(amax(&[1.0, -3.0, 2.0]), 3.0);
        assert!(amax(&[1.0, -f32::NAN, f32::INFINITY]).is_nan());
    }

    #[test]
    fn pow2_is_exact_over_its_range() {
        for e in -149..=127 {
            assert_eq!(f64::from(pow2(e)), 2f64.powi(e), "2^{e}");
        }
    }
}
