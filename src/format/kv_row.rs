//! Rows of the KV pools: the 512-vector of a token (window) or of a compressed block, which is both key and value.
//!
//! | format | row | page of P rows |
//! |---|---|---|
//! | `fp8` | 584 B: 448 e4m3 + 64 bf16 (the rotated dims), then 7 ue8m0 + 1 pad byte | `[P x 576][P x 8]`, padded to a multiple of 576 |
//! | `bf16` | 1024 B | rows |
//! | `f32` | 2048 B, for the CPU with rounding off | rows |
//!
//! The FP8 rounding belongs to the trained model; [`round_nope`] applies it to a row that is then stored wider.

use super::{amax, bf16, e4m3, ue8m0};

/// Elements of a row.
pub const DIMS: usize = 512;
/// The leading elements, without position, that FP8 rounds.
pub const NOPE: usize = 448;
/// Elements that share one FP8 scale.
pub const TILE: usize = 64;
/// Code bytes of an FP8 row.
pub const FP8_DATA: usize = NOPE + 2 * (DIMS - NOPE);
/// Scale bytes of an FP8 row: one per tile and one of padding.
pub const FP8_SCALES: usize = 8;

/// How a KV pool stores its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    Fp8,
    Bf16,
    F32,
}

impl KvFormat {
    /// Bytes of one row, page padding apart.
    #[must_use]
    pub const fn row_bytes(self) -> usize {
        match self {
            Self::Fp8 => FP8_DATA + FP8_SCALES,
            Self::Bf16 => 2 * DIMS,
            Self::F32 => 4 * DIMS,
        }
    }

    /// Bytes of a page, which is also the distance between pages.
    #[must_use]
    pub const fn page_bytes(self, rows_per_page: usize) -> usize {
        let bytes = self.row_bytes() * rows_per_page;
        match self {
            Self::Fp8 => bytes.next_multiple_of(FP8_DATA),
            Self::Bf16 | Self::F32 => bytes,
        }
    }

    /// Byte ranges of one row in its page: data, and scales (empty but for FP8).
    #[must_use]
    pub const fn row_ranges(
        self,
        row: usize,
        rows_per_page: usize,
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        match self {
            Self::Fp8 => {
                let scales = rows_per_page * FP8_DATA + row * FP8_SCALES;
                (row * FP8_DATA..(row + 1) * FP8_DATA, scales..scales + FP8_SCALES)
            }
            Self::Bf16 | Self::F32 => {
                let bytes = self.row_bytes();
                (row * bytes..(row + 1) * bytes, 0..0)
            }
        }
    }

    /// Stores a row in its page.
    #[inline(always)]
    pub fn encode_row(self, values: &[f32; DIMS], page: &mut [u8], row: usize, rows_per_page: usize) {
        debug_assert!(row < rows_per_page && page.len() >= self.page_bytes(rows_per_page));
        let (data, scales) = self.row_ranges(row, rows_per_page);
        match self {
            Self::Fp8 => {
                let (head, tail) = page.split_at_mut(rows_per_page * FP8_DATA);
                let scales = scales.start - head.len()..scales.end - head.len();
                encode_fp8(values, &mut head[data], &mut tail[scales]);
            }
            Self::Bf16 => bf16::encode_into(values, &mut page[data]),
            Self::F32 => {
                for (bytes, v) in page[data].chunks_exact_mut(4).zip(values) {
                    bytes.copy_from_slice(&v.to_le_bytes());
                }
            }
        }
    }

    /// Loads a row from its page.
    #[inline(always)]
    pub fn decode_row(self, page: &[u8], row: usize, rows_per_page: usize, out: &mut [f32; DIMS]) {
        debug_assert!(row < rows_per_page && page.len() >= self.page_bytes(rows_per_page));
        let (data, scales) = self.row_ranges(row, rows_per_page);
        match self {
            Self::Fp8 => decode_fp8(&page[data], &page[scales], out),
            Self::Bf16 => bf16::decode_into(&page[data], out),
            Self::F32 => {
                for (bytes, o) in page[data].chunks_exact(4).zip(out) {
                    *o = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
        }
    }
}

/// Writes the 576 data bytes and the 8 scale bytes of one row. The pad byte becomes 0, so that equal rows are equal bytes.
#[inline(always)]
pub fn encode_fp8(values: &[f32; DIMS], data: &mut [u8], scales: &mut [u8]) {
    debug_assert_eq!((data.len(), scales.len()), (FP8_DATA, FP8_SCALES));
    let (codes, rope) = data.split_at_mut(NOPE);
    for ((tile, codes), scale) in
        values.chunks_exact(TILE).zip(codes.chunks_exact_mut(TILE)).zip(scales.iter_mut())
    {
        *scale = ue8m0::scale_fp8(amax(tile));
        let inverse = ue8m0::reciprocal(*scale);
        for (v, code) in tile.iter().zip(codes) {
            *code = e4m3::encode(v * inverse);
        }
    }
    scales[FP8_SCALES - 1] = 0;
    bf16::encode_into(&values[NOPE..], rope);
}

/// Reads what [`encode_fp8`] wrote.
#[inline(always)]
pub fn decode_fp8(data: &[u8], scales: &[u8], out: &mut [f32; DIMS]) {
    debug_assert_eq!((data.len(), scales.len()), (FP8_DATA, FP8_SCALES));
    let (nope, rope) = out.split_at_mut(NOPE);
    for ((codes, out), scale) in data.chunks_exact(TILE).zip(nope.chunks_exact_mut(TILE)).zip(scales) {
        let scale = ue8m0::decode(*scale);
        e4m3::decode_into(codes, out);
        for o in out {
            *o *= scale;
        }
    }
    bf16::decode_into(&data[NOPE..], rope);
}

/// Rounds a row as storing it in FP8 and loading it would: the rotated part to bf16, the rest to FP8 tiles.
pub fn round_nope(values: &mut [f32; DIMS]) {
    let (mut data, mut scales) = ([0; FP8_DATA], [0; FP8_SCALES]);
    encode_fp8(values, &mut data, &mut scales);
    decode_fp8(&data, &scales, values);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seed: usize) -> [f32; DIMS] {
        std::array::from_fn(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 300.0 - 3.0)
    }

    #[test]
    fn page_sizes_are_the_published_ones() {
        let fp8 = KvFormat::Fp8;
        assert_eq!((fp8.page_bytes(64), fp8.page_bytes(256), fp8.page_bytes(2)), (37440, 149_760, 1728));
        assert_eq!(
            (fp8.row_bytes(), KvFormat::Bf16.row_bytes(), KvFormat::F32.row_bytes()),
            (584, 1024, 2048)
        );
    }

    /// The rounding rule of the model, element by element in f64.
    fn rounded(values: &[f32; DIMS], i: usize) -> f32 {
        if i >= NOPE {
            return half::bf16::from_f32(values[i]).to_f32();
        }
        let tile = &values[i / TILE * TILE..][..TILE];
        let largest = tile.iter().fold(1e-4f64, |m, v| m.max(f64::from(*v).abs()));
        let scale = 2f64.powf((largest / 448.0).log2().ceil());
        (float8::F8E4M3::from_f64(f64::from(values[i]) / scale).to_f64() * scale) as f32
    }

    #[test]
    fn fp8_rows_hold_the_rounded_values_and_leave_their_neighbours() {
        let (format, rows) = (KvFormat::Fp8, 5);
        let mut page = vec![0xaa; format.page_bytes(rows)];
        for row in [3, 0, 4, 1, 2] {
            format.encode_row(&sample(row), &mut page, row, rows);
        }
        for row in 0..rows {
            let (values, mut out) = (sample(row), [0.0; DIMS]);
            format.decode_row(&page, row, rows, &mut out);
            for (i, o) in out.iter().enumerate() {
                assert_eq!(*o, rounded(&values, i), "row {row} element {i}");
            }
        }
        assert!(page[rows * 584..].iter().all(|b| *b == 0xaa), "padding must stay untouched");
    }

    #[test]
    fn wide_formats_store_rows_as_they_are() {
        for format in [KvFormat::Bf16, KvFormat::F32] {
            let mut page = vec![0; format.page_bytes(3)];
            let mut values = sample(9);
            if format == KvFormat::Bf16 {
                bf16::round_slice(&mut values);
            }
            format.encode_row(&values, &mut page, 1, 3);
            let mut out = [0.0; DIMS];
            format.decode_row(&page, 1, 3, &mut out);
            assert_eq!(out, values);
            format.decode_row(&page, 2, 3, &mut out);
            assert_eq!(out, [0.0; DIMS]);
        }
    }

    #[test]
    fn rounding_equals_storing_and_is_idempotent() {
        let mut values = sample(4);
        let original = values;
        round_nope(&mut values);
        assert!(values.iter().enumerate().all(|(i, v)| *v == rounded(&original, i)));
        let once = values;
        round_nope(&mut values);
        assert_eq!(values, once);
    }

    #[test]
    fn q08_extreme_tiles_are_finite_and_nan_stays_visible() {
        let mut values = [0.0; DIMS];
        for (tile, v) in [0.0, f32::from_bits(1), 448.0, 450.0, 3.4e38, -1e-5].into_iter().enumerate() {
            values[tile * TILE] = v;
        }
        values[6 * TILE] = f32::NAN;
        round_nope(&mut values);
        assert!(values[..6 * TILE].iter().all(|v| !v.is_nan()));
        assert_eq!(values[4 * TILE], f32::INFINITY, "3.4e38 rounds up to 2^128, as it would in bf16");
        assert_eq!((values[2 * TILE], values[3 * TILE]), (448.0, 448.0));
        assert!(values[6 * TILE..NOPE].iter().all(|v| v.is_nan()));
    }
}
