//! Tensors as they are written.

use safetensors::tensor::Dtype;

use crate::checkpoint::inventory::Spec;
use crate::checkpoint::map::Span;
use crate::checkpoint::weights::{IdTable, Matrix, WeightFormat};
use crate::format::{FormatError, fp8_block, mxfp4, nvfp4};

/// One tensor of the output.
pub(super) struct Blob {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) data: Span,
}

impl Blob {
    pub(super) fn new(name: String, dtype: Dtype, shape: &[usize], data: impl Into<Span>) -> Self {
        Self { name, dtype, shape: shape.to_vec(), data: data.into() }
    }
}

/// A matrix in its new form.
pub(super) struct Stored {
    format: WeightFormat,
    codes: Span,
    scales: Span,
    scale2: f32,
}

impl Stored {
    pub(super) fn new(format: WeightFormat, codes: Vec<u8>, scales: Vec<u8>, scale2: f32) -> Self {
        Self { format, codes: codes.into(), scales: scales.into(), scale2 }
    }

    /// The matrix of a checkpoint is one part, so this copies nothing.
    pub(super) fn copy(matrix: &Matrix) -> Result<Self, FormatError> {
        let [part] = matrix.parts.as_slice() else {
            return Err(FormatError::Length { what: "parts", expected: 1, found: matrix.parts.len() });
        };
        Ok(Self {
            format: matrix.format,
            codes: part.codes.clone(),
            scales: part.scales.clone(),
            scale2: part.scale2,
        })
    }

    /// The tensors of the official layout.
    pub(super) fn blobs(self, spec: &Spec) -> Vec<Blob> {
        let (rows, cols) = (spec.shape[0], spec.shape[1]);
        let stem = spec.name.strip_suffix(".weight").unwrap_or(&spec.name).to_owned();
        let code_cols =
            if matches!(self.format, WeightFormat::Nvfp4 | WeightFormat::Mxfp4) { cols / 2 } else { cols };
        let mut blobs =
            vec![Blob::new(spec.name.clone(), dtype(self.format), &[rows, code_cols], self.codes)];
        let blocks = [rows.div_ceil(fp8_block::BLOCK), cols.div_ceil(fp8_block::BLOCK)];
        let scale = |suffix: &str, dtype, shape: &[usize], data| {
            Blob::new(format!("{stem}.{suffix}"), dtype, shape, data)
        };
        match self.format {
            WeightFormat::F32 | WeightFormat::Bf16 => {}
            WeightFormat::Fp8Block => blobs.push(scale("scale", Dtype::F8_E8M0, &blocks, self.scales)),
            WeightFormat::Fp8BlockF32 => blobs.push(scale("scale", Dtype::F32, &blocks, self.scales)),
            WeightFormat::Mxfp4 => {
                blobs.push(scale("scale", Dtype::F8_E8M0, &[rows, cols / mxfp4::BLOCK], self.scales));
            }
            WeightFormat::Nvfp4 => {
                let one = |v: f32| Span::from(v.to_le_bytes().to_vec());
                blobs.push(scale("weight_scale", Dtype::F8_E4M3, &[rows, cols / nvfp4::BLOCK], self.scales));
                blobs.push(scale("weight_scale_2", Dtype::F32, &[], one(self.scale2)));
                // Engines that quantise activations want one; with 1 their block scales carry everything.
                blobs.push(scale("input_scale", Dtype::F32, &[], one(1.0)));
            }
        }
        blobs
    }
}

pub(super) fn dtype(format: WeightFormat) -> Dtype {
    match format {
        WeightFormat::F32 => Dtype::F32,
        WeightFormat::Bf16 => Dtype::BF16,
        WeightFormat::Fp8Block | WeightFormat::Fp8BlockF32 => Dtype::F8_E4M3,
        WeightFormat::Nvfp4 => Dtype::U8,
        WeightFormat::Mxfp4 => Dtype::I8,
    }
}

pub(super) fn ids(spec: &Spec, table: &IdTable) -> Blob {
    let bytes: Vec<u8> = table.ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
    Blob::new(spec.name.clone(), Dtype::I64, &spec.shape, bytes)
}

/// An NVFP4 matrix whose scales are those of an MXFP4 one.
pub(super) fn exact_mxfp4(matrix: &Matrix) -> Option<Stored> {
    let [part] = matrix.parts.as_slice() else { return None };
    if matrix.format != WeightFormat::Nvfp4 {
        return None;
    }
    let scales = nvfp4::as_mxfp4_scales(&part.scales, part.scale2)?;
    Some(Stored {
        format: WeightFormat::Mxfp4,
        codes: part.codes.clone(),
        scales: scales.into(),
        scale2: 1.0,
    })
}
