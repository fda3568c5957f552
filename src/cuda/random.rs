//! Random weights of a model that no file holds, made on the device: for the size and speed of a real one.
//!
//! Every matrix has the official format. Values are such that activations keep their size from layer to layer; they mean
//! nothing.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::ffi::{self, FillParams};
use super::launch::Params;
use super::{Backend, CudaError, DeviceBuffer, DeviceWeight, DeviceWeights, Kernel, Launch, MatrixFormat};
use crate::model::{Entry, Registry, Source};
use crate::step::{Random, WeightId};

/// 1.0 in e4m3.
const ONE_E4M3: i32 = 0x38;
/// Root mean squares of the codes that `fill` draws.
const RMS_E4M3: f32 = 1.7;
const RMS_E2M1: f32 = 2.8;

// SAFETY: generated from the kernel's header; it has no gaps.
unsafe impl Params for FillParams {}

/// What to write into one buffer.
#[derive(Clone, Copy)]
enum Fill {
    F32 { mean: f32, scale: f32 },
    Bf16 { scale: f32 },
    E4m3,
    Bytes,
    Byte(i32),
}

impl DeviceWeights {
    /// Weights for every entry of `registry`. `experts` says how many matrices an expert stack holds.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; too little memory is one.
    pub fn random(
        backend: &Arc<dyn Backend>,
        registry: &Registry,
        experts: &HashMap<WeightId, usize>,
        seed: u64,
    ) -> Result<Self, CudaError> {
        let mut weights = Self::default();
        let count = experts.values().copied().max().unwrap_or(0);
        for entry in &registry.entries {
            let maker = Maker {
                backend,
                experts: count,
                seed: seed.wrapping_mul(0x10001) + u64::from(entry.weight.id.0) * 8,
            };
            let stack = experts.get(&entry.weight.id).copied();
            weights.insert(entry.weight.id, maker.weight(entry, stack)?);
        }
        backend.synchronize()?;
        Ok(weights)
    }
}

struct Maker<'a> {
    backend: &'a Arc<dyn Backend>,
    /// Of a layer.
    experts: usize,
    seed: u64,
}

impl Maker<'_> {
    fn weight(&self, entry: &Entry, stack: Option<usize>) -> Result<DeviceWeight, CudaError> {
        let (rows, cols) = (entry.weight.rows, entry.weight.cols);
        match &entry.source {
            Source::Stack(_) => self.matrix(rows, cols, entry.weight.bytes, stack),
            Source::Floats(name) => {
                let gain = name.ends_with("norm.weight");
                let (mean, scale) = if gain { (1.0, 0.1) } else { (0.0, 1.0 / (cols as f32).sqrt()) };
                self.plain(MatrixFormat::F32, rows * cols, 4, Fill::F32 { mean, scale })
            }
            Source::Table(_) => {
                let ids = table(rows, cols, self.experts, self.seed);
                DeviceWeight::plain(self.backend, MatrixFormat::Table, bytemuck::cast_slice(&ids))
            }
            Source::Rope { rope, positions } => {
                let table = rope.table(*positions);
                DeviceWeight::plain(self.backend, MatrixFormat::F32, bytemuck::cast_slice(&table))
            }
        }
    }

    /// A matrix in the format that its official bytes tell.
    fn matrix(
        &self,
        rows: usize,
        cols: usize,
        bytes: usize,
        stack: Option<usize>,
    ) -> Result<DeviceWeight, CudaError> {
        let unit = 3f32.sqrt() / (cols as f32).sqrt();
        if let Some(stack) = stack {
            let (codes, scales) = MatrixFormat::Nvfp4.bytes(rows, cols);
            return Ok(DeviceWeight {
                format: MatrixFormat::Nvfp4,
                codes: self.buffer(codes, 1, Fill::Bytes, 0)?,
                scales: Some(self.buffer(scales, 1, Fill::Byte(ONE_E4M3), 1)?),
                global: Some(self.buffer(stack, 4, constant(1.0 / (RMS_E2M1 * (cols as f32).sqrt())), 2)?),
            });
        }
        if bytes == 2 * rows * cols {
            return self.plain(MatrixFormat::Bf16, rows * cols, 2, Fill::Bf16 { scale: unit });
        }
        let (codes, scales) = MatrixFormat::Fp8Block.bytes(rows, cols);
        Ok(DeviceWeight {
            format: MatrixFormat::Fp8Block,
            codes: self.buffer(codes, 1, Fill::E4m3, 0)?,
            scales: Some(self.buffer(scales / 4, 4, constant(1.0 / (RMS_E4M3 * (cols as f32).sqrt())), 1)?),
            global: None,
        })
    }

    fn plain(
        &self,
        format: MatrixFormat,
        count: usize,
        size: usize,
        fill: Fill,
    ) -> Result<DeviceWeight, CudaError> {
        Ok(DeviceWeight { format, codes: self.buffer(count, size, fill, 0)?, scales: None, global: None })
    }

    fn buffer(&self, count: usize, size: usize, fill: Fill, part: u64) -> Result<DeviceBuffer, CudaError> {
        let buffer = DeviceBuffer::new(self.backend, count * size)?;
        let (kind, mean, scale, byte) = match fill {
            Fill::F32 { mean, scale } => (ffi::kFillF32, mean, scale, 0),
            Fill::Bf16 { scale } => (ffi::kFillBf16, 0.0, scale, 0),
            Fill::E4m3 => (ffi::kFillE4m3, 0.0, 0.0, 0),
            Fill::Bytes => (ffi::kFillBytes, 0.0, 0.0, 0),
            Fill::Byte(byte) => (ffi::kFillByte, 0.0, 0.0, byte),
        };
        let params = FillParams {
            out: buffer.address() as *mut c_void,
            count: i64::try_from(count).unwrap_or(i64::MAX),
            seed: self.seed + part,
            mean,
            scale,
            kind: kind as i32,
            byte,
        };
        let blocks = count.div_ceil(256).min(8 * self.backend.multiprocessors());
        let launch = Launch::new(Kernel::Fill, [blocks, 1, 1], 256, 0, &params);
        // SAFETY: it writes `count` elements of a buffer of that many, which outlives it: its release waits.
        unsafe { self.backend.launch(&launch)? };
        Ok(buffer)
    }
}

const fn constant(value: f32) -> Fill {
    Fill::F32 { mean: value, scale: 0.0 }
}

/// Distinct ids below `count` in each row: neighbours, from a random start.
fn table(rows: usize, cols: usize, count: usize, seed: u64) -> Vec<i32> {
    let mut random = Random::new(seed);
    let row = |_| {
        let first = random.below(count.max(1));
        (0..cols).map(move |j| i32::try_from((first + j) % count.max(1)).unwrap_or(0))
    };
    (0..rows).flat_map(row).collect()
}
