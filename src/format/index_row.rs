//! Index keys and index queries: 128-vectors, already rotated (RoPE, then Hadamard).
//!
//! | format | codes | scales |
//! |---|---|---|
//! | `f32` | 512 B | none |
//! | `bf16` | 256 B | none |
//! | `fp8` | 128 e4m3 | one f32, a power of two rounded up |
//! | `fp4` | 64 B of e2m1 pairs | four ue8m0, one per 32; the format the model was trained with |
//!
//! A page of P rows is planar, `[P x codes][P x scales]`, without padding. A query head has the same two parts, which the
//! operations keep in two tensors.

use super::{amax, bf16, e4m3, mxfp4, ue8m0};

/// Elements of a vector.
pub const DIMS: usize = 128;

/// How index vectors are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexFormat {
    F32,
    Bf16,
    Fp8,
    Fp4,
}

impl IndexFormat {
    /// Code bytes of one vector.
    #[must_use]
    pub const fn code_bytes(self) -> usize {
        match self {
            Self::F32 => 4 * DIMS,
            Self::Bf16 => 2 * DIMS,
            Self::Fp8 => DIMS,
            Self::Fp4 => DIMS / 2,
        }
    }

    /// Scale bytes of one vector.
    #[must_use]
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Fp8 | Self::Fp4 => 4,
        }
    }

    /// Bytes of one row.
    #[must_use]
    pub const fn row_bytes(self) -> usize {
        self.code_bytes() + self.scale_bytes()
    }

    /// Bytes of a page, which is also the distance between pages.
    #[must_use]
    pub const fn page_bytes(self, rows_per_page: usize) -> usize {
        self.row_bytes() * rows_per_page
    }

    /// Byte ranges of one row in its page: codes, and scales (empty for the wide formats).
    #[must_use]
    pub const fn row_ranges(
        self,
        row: usize,
        rows_per_page: usize,
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (c, s) = (self.code_bytes(), self.scale_bytes());
        let scales = rows_per_page * c + row * s;
        (row * c..(row + 1) * c, scales..scales + s)
    }

    /// Encodes one vector (a key, or one query head) into its codes and its scales.
    #[inline(always)]
    pub fn encode(self, values: &[f32; DIMS], codes: &mut [u8], scales: &mut [u8]) {
        debug_assert_eq!((codes.len(), scales.len()), (self.code_bytes(), self.scale_bytes()));
        match self {
            Self::F32 => {
                for (bytes, v) in codes.chunks_exact_mut(4).zip(values) {
                    bytes.copy_from_slice(&v.to_le_bytes());
                }
            }
            Self::Bf16 => bf16::encode_into(values, codes),
            Self::Fp8 => {
                let scale = ue8m0::scale_fp8(amax(values));
                let inverse = ue8m0::reciprocal(scale);
                for (v, code) in values.iter().zip(codes) {
                    *code = e4m3::encode(v * inverse);
                }
                scales.copy_from_slice(&ue8m0::decode(scale).to_le_bytes());
            }
            Self::Fp4 => mxfp4::encode_into(values, codes, scales),
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    #[inline(always)]
    pub fn decode(self, codes: &[u8], scales: &[u8], out: &mut [f32; DIMS]) {
        debug_assert_eq!((codes.len(), scales.len()), (self.code_bytes(), self.scale_bytes()));
        match self {
            Self::F32 => {
                for (bytes, o) in codes.chunks_exact(4).zip(out) {
                    *o = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            Self::Bf16 => bf16::decode_into(codes, out),
            Self::Fp8 => {
                let scale = f32::from_le_bytes([scales[0], scales[1], scales[2], scales[3]]);
                e4m3::decode_into(codes, out);
                for o in out {
                    *o *= scale;
                }
            }
            Self::Fp4 => mxfp4::decode_into(codes, scales, out),
        }
    }

    /// Stores a key in its page.
    #[inline(always)]
    pub fn encode_row(self, values: &[f32; DIMS], page: &mut [u8], row: usize, rows_per_page: usize) {
        debug_assert!(row < rows_per_page && page.len() >= self.page_bytes(rows_per_page));
        let (codes, scales) = self.row_ranges(row, rows_per_page);
        let (head, tail) = page.split_at_mut(rows_per_page * self.code_bytes());
        let scales = scales.start - head.len()..scales.end - head.len();
        self.encode(values, &mut head[codes], &mut tail[scales]);
    }

    /// Loads a key from its page.
    #[inline(always)]
    pub fn decode_row(self, page: &[u8], row: usize, rows_per_page: usize, out: &mut [f32; DIMS]) {
        debug_assert!(row < rows_per_page && page.len() >= self.page_bytes(rows_per_page));
        let (codes, scales) = self.row_ranges(row, rows_per_page);
        self.decode(&page[codes], &page[scales], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::e2m1;

    const ALL: [IndexFormat; 4] = [IndexFormat::F32, IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4];

    fn sample(seed: usize) -> [f32; DIMS] {
        std::array::from_fn(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 300.0 - 3.0)
    }

    #[test]
    fn page_sizes_are_the_published_ones() {
        let rows: Vec<usize> = ALL.iter().map(|f| f.row_bytes()).collect();
        assert_eq!(rows, [512, 256, 132, 68]);
        assert_eq!((IndexFormat::Fp8.page_bytes(64), IndexFormat::Fp4.page_bytes(64)), (8448, 4352));
    }

    /// Each format's rounding, element by element in f64.
    fn rounded(format: IndexFormat, values: &[f32; DIMS], i: usize) -> f32 {
        let largest = |span: &[f32], floor: f64| span.iter().fold(floor, |m, v| m.max(f64::from(*v).abs()));
        match format {
            IndexFormat::F32 => values[i],
            IndexFormat::Bf16 => half::bf16::from_f32(values[i]).to_f32(),
            IndexFormat::Fp8 => {
                let scale = 2f64.powf((largest(values, 1e-4) / 448.0).log2().ceil());
                (float8::F8E4M3::from_f64(f64::from(values[i]) / scale).to_f64() * scale) as f32
            }
            IndexFormat::Fp4 => {
                let block = &values[i / 32 * 32..][..32];
                let scale = 2f64.powf((largest(block, 1e-30) / 6.0).log2().ceil());
                let code = e2m1::encode((f64::from(values[i]) / scale) as f32);
                (f64::from(e2m1::VALUES[usize::from(code)]) * scale) as f32
            }
        }
    }

    #[test]
    fn rows_hold_the_rounded_values_in_any_order_of_writing() {
        for format in ALL {
            let rows = 4;
            let mut page = vec![0x55; format.page_bytes(rows)];
            for row in [2, 0, 3, 1] {
                format.encode_row(&sample(row), &mut page, row, rows);
            }
            for row in 0..rows {
                let (values, mut out) = (sample(row), [0.0; DIMS]);
                format.decode_row(&page, row, rows, &mut out);
                for (i, o) in out.iter().enumerate() {
                    assert_eq!(*o, rounded(format, &values, i), "{format:?} row {row} element {i}");
                }
            }
        }
    }

    #[test]
    fn fp4_scale_bytes_are_in_block_order() {
        let values: [f32; DIMS] = std::array::from_fn(|i| crate::format::pow2(i as i32 / 32) * 6.0);
        let (mut codes, mut scales) = ([0; 64], [0; 4]);
        IndexFormat::Fp4.encode(&values, &mut codes, &mut scales);
        assert_eq!((scales, codes), ([127, 128, 129, 130], [0x77; 64]));
    }

    #[test]
    fn nan_stays_visible_and_zero_is_zero() {
        for format in ALL {
            let mut codes = vec![0xff; format.code_bytes()];
            let mut scales = vec![0xff; format.scale_bytes()];
            let mut out = [1.0; DIMS];
            format.encode(&[0.0; DIMS], &mut codes, &mut scales);
            format.decode(&codes, &scales, &mut out);
            assert_eq!(out, [0.0; DIMS], "{format:?}");
            let mut poisoned = sample(1);
            poisoned[77] = f32::NAN;
            format.encode(&poisoned, &mut codes, &mut scales);
            format.decode(&codes, &scales, &mut out);
            assert!(out[77].is_nan(), "{format:?}");
        }
    }
}
