//! From a checkpoint's weights to the device's.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Backend, CudaError, DeviceWeight, DeviceWeights, MatrixFormat};
use crate::checkpoint::{Matrix, Part, WeightFormat};
use crate::format::ue8m0;
use crate::model::Loaded;
use crate::step::WeightId;

/// Rows and columns of an FP8 block.
const BLOCK: usize = crate::format::fp8_block::BLOCK;

impl DeviceWeights {
    /// Uploads every weight in its stored format. `experts` says how many matrices an expert stack holds; every other
    /// weight is one matrix.
    ///
    /// # Errors
    /// [`CudaError::Driver`], or [`CudaError::Stack`] for a stack whose scales no kernel reads.
    pub fn load(
        backend: &Arc<dyn Backend>,
        loaded: &[(WeightId, Loaded)],
        experts: &HashMap<WeightId, usize>,
    ) -> Result<Self, CudaError> {
        let mut weights = Self::default();
        for (id, loaded) in loaded {
            let weight = match loaded {
                Loaded::Matrix(matrix) => {
                    self::matrix(backend, matrix, experts.get(id).copied().unwrap_or(1))?
                }
                Loaded::Floats(values) => {
                    DeviceWeight::plain(backend, MatrixFormat::F32, bytemuck::cast_slice(values))?
                }
                Loaded::Table(table) => {
                    DeviceWeight::plain(backend, MatrixFormat::Table, bytemuck::cast_slice(&table.ids))?
                }
            };
            weights.insert(*id, weight);
        }
        Ok(weights)
    }
}

fn matrix(backend: &Arc<dyn Backend>, matrix: &Matrix, stack: usize) -> Result<DeviceWeight, CudaError> {
    let codes = concat(matrix, |part| &part.codes);
    match matrix.format {
        WeightFormat::F32 => DeviceWeight::plain(backend, MatrixFormat::F32, &codes),
        WeightFormat::Bf16 => DeviceWeight::plain(backend, MatrixFormat::Bf16, &codes),
        WeightFormat::Fp8Block | WeightFormat::Fp8BlockF32 => {
            let (last, first) = matrix.parts.split_last().map_or((None, &[][..]), |(l, f)| (Some(l), f));
            if last.is_none() || first.iter().any(|part| !part.rows.is_multiple_of(BLOCK)) {
                return Err(unsupported(matrix, "its parts do not end at blocks of 128 rows"));
            }
            let scales: Vec<f32> = matrix.parts.iter().flat_map(|part| scales(matrix.format, part)).collect();
            DeviceWeight::scaled(backend, MatrixFormat::Fp8Block, &codes, bytemuck::cast_slice(&scales), &[])
        }
        WeightFormat::Nvfp4 => {
            let scales = concat(matrix, |part| &part.scales);
            let global = globals(matrix, stack)?;
            DeviceWeight::scaled(backend, MatrixFormat::Nvfp4, &codes, &scales, &global)
        }
        WeightFormat::Mxfp4 => {
            let scales = concat(matrix, |part| &part.scales);
            DeviceWeight::scaled(backend, MatrixFormat::Mxfp4, &codes, &scales, &[])
        }
    }
}

fn concat(matrix: &Matrix, of: impl Fn(&Part) -> &[u8]) -> Vec<u8> {
    matrix.parts.iter().flat_map(|part| of(part).iter().copied()).collect()
}

fn scales(format: WeightFormat, part: &Part) -> Vec<f32> {
    match format {
        WeightFormat::Fp8Block => part.scales.iter().map(|&s| ue8m0::decode(s)).collect(),
        _ => part.scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// The second-level scale of each matrix of a stack: its parts (w1 and w3 of an expert) must share it.
fn globals(matrix: &Matrix, stack: usize) -> Result<Vec<f32>, CudaError> {
    let parts = matrix.parts.len();
    if stack == 0 || !parts.is_multiple_of(stack) {
        return Err(unsupported(matrix, "its parts do not divide among its matrices"));
    }
    let shared = |parts: &[Part]| {
        let first = parts.first().map_or(1.0, |part| part.scale2);
        parts.iter().all(|part| part.scale2 == first).then_some(first)
    };
    let all = matrix.parts.chunks(parts / stack).map(shared).collect::<Option<_>>();
    all.ok_or_else(|| unsupported(matrix, "gate and up of an expert have different second-level scales"))
}

fn unsupported(matrix: &Matrix, why: &'static str) -> CudaError {
    CudaError::Stack { weight: matrix.name.to_string(), problem: why }
}
