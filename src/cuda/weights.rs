//! Weights on the device, by id: matrices in a stored format, vectors of gains, and integer tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ffi;
use super::{Backend, CudaError, DeviceBuffer};
use crate::step::WeightId;

/// How a weight's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixFormat {
    F32,
    Bf16,
    /// e4m3 codes; f32 scales, one per 128x128 block of each matrix.
    Fp8Block,
    /// e2m1 codes; e4m3 scales per 16 and one f32 a matrix.
    Nvfp4,
    /// e2m1 codes; ue8m0 scales per 32.
    Mxfp4,
    /// i32, for look-up tables.
    Table,
}

impl MatrixFormat {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8Block => "FP8 blocks",
            Self::Nvfp4 => "NVFP4",
            Self::Mxfp4 => "MXFP4",
            Self::Table => "an integer table",
        }
    }

    pub(super) const fn code(self) -> i32 {
        (match self {
            Self::F32 | Self::Table => ffi::kWeightF32,
            Self::Bf16 => ffi::kWeightBf16,
            Self::Fp8Block => ffi::kWeightFp8Block,
            Self::Nvfp4 => ffi::kWeightNvfp4,
            Self::Mxfp4 => ffi::kWeightMxfp4,
        }) as i32
    }

    /// Bytes of codes and of scales of one matrix of `rows x cols`.
    #[must_use]
    pub const fn bytes(self, rows: usize, cols: usize) -> (usize, usize) {
        match self {
            Self::F32 | Self::Table => (4 * rows * cols, 0),
            Self::Bf16 => (2 * rows * cols, 0),
            Self::Fp8Block => (rows * cols, 4 * rows.div_ceil(128) * cols.div_ceil(128)),
            Self::Nvfp4 => (rows * cols / 2, rows * (cols / 16)),
            Self::Mxfp4 => (rows * cols / 2, rows * (cols / 32)),
        }
    }
}

/// One weight: a stack of matrices (one, or one an expert) in one format.
#[derive(Debug)]
pub struct DeviceWeight {
    pub format: MatrixFormat,
    /// As kernels read them: e2m1 codes are not two to a byte, but arranged as [`scaled`](Self::scaled) does.
    pub codes: DeviceBuffer,
    pub scales: Option<DeviceBuffer>,
    /// NVFP4's second level, f32, one a matrix.
    pub global: Option<DeviceBuffer>,
}

impl DeviceWeight {
    /// A weight with no scales: f32 or bf16 numbers, or a table.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn plain(backend: &Arc<dyn Backend>, format: MatrixFormat, bytes: &[u8]) -> Result<Self, CudaError> {
        Ok(Self { format, codes: DeviceBuffer::from_bytes(backend, bytes)?, scales: None, global: None })
    }

    /// Its memory, by part.
    pub fn buffers(&self) -> impl Iterator<Item = &DeviceBuffer> {
        [Some(&self.codes), self.scales.as_ref(), self.global.as_ref()].into_iter().flatten()
    }

    /// A block-scaled weight, with its codes as checkpoints have them.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn scaled(
        backend: &Arc<dyn Backend>,
        format: MatrixFormat,
        codes: &[u8],
        scales: &[u8],
        global: &[f32],
    ) -> Result<Self, CudaError> {
        let global =
            (!global.is_empty()).then(|| DeviceBuffer::from_bytes(backend, bytemuck::cast_slice(global)));
        Ok(Self {
            format,
            codes: match format {
                MatrixFormat::Nvfp4 | MatrixFormat::Mxfp4 => {
                    DeviceBuffer::from_bytes(backend, &arrange_fp4(codes))?
                }
                _ => DeviceBuffer::from_bytes(backend, codes)?,
            },
            scales: Some(DeviceBuffer::from_bytes(backend, scales)?),
            global: global.transpose()?,
        })
    }
}

/// Where each pair of sixteen e2m1 codes begins, as `csrc/common/convert.h` tells.
const FP4_PLACES: [u32; 8] = [0, 4, 10, 2, 6, 12, 8, 14];
/// The bits of a first word, and again 16 higher, that pairs 6 and 7 have; what else they have is of the second word.
const FP4_LEFT: u32 = 0xc180_c180;

/// e2m1 codes, two to a byte, as the kernels read them: sixteen to two words, so that a rotation and a mask bring a pair to its
/// place among bf16. Rows are whole pairs of words.
fn arrange_fp4(codes: &[u8]) -> Vec<u8> {
    let mut out = codes.to_vec();
    for block in out.chunks_exact_mut(8) {
        let (mut words, mut left) = ([0u32; 2], 0u32);
        for (pair, (&byte, place)) in block.iter().zip(FP4_PLACES).enumerate() {
            let one = |code: u8| u32::from(code & 7) | u32::from(code >> 3) << 9;
            let both = (one(byte & 15) | one(byte >> 4) << 16).rotate_left(place);
            match pair {
                0..3 => words[0] |= both,
                3..6 => words[1] |= both,
                _ => left |= both,
            }
        }
        words[0] |= left & FP4_LEFT;
        words[1] |= left & !FP4_LEFT;
        block[..4].copy_from_slice(&words[0].to_le_bytes());
        block[4..].copy_from_slice(&words[1].to_le_bytes());
    }
    out
}

/// Every weight of a model or a test.
#[derive(Debug, Default)]
pub struct DeviceWeights {
    all: BTreeMap<WeightId, DeviceWeight>,
}

impl DeviceWeights {
    pub fn insert(&mut self, id: WeightId, weight: DeviceWeight) {
        self.all.insert(id, weight);
    }

    #[must_use]
    pub fn get(&self, id: WeightId) -> Option<&DeviceWeight> {
        self.all.get(&id)
    }
}
