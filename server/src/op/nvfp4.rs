//! NVFP4 to numbers and back. The format's definition runs on the host; a GPU has kernels for the same.

use anyhow::{Context, bail};
use flashlane::format::nvfp4;

use super::run::Place;
use super::tensors::{Dtype, Tensor, Tensors};

pub(super) const DEQUANTIZE: &str = "nvfp4_dequantize";
pub(super) const QUANTIZE: &str = "nvfp4_quantize";

pub(super) const DEQUANTIZE_HELP: &str = "\
nvfp4_dequantize: out = (e2m1 * scale) * scale2, in this order in f32

in   codes   U8 [rows, cols/2]              two e2m1 codes a byte, the first in the low bits
     scales  U8 or F8_E4M3 [rows, cols/16]  one e4m3 for each 16 columns
     scale2  F32 [1]                        of the whole matrix
out  out     F32 [rows, cols]";

pub(super) const QUANTIZE_HELP: &str = "\
nvfp4_quantize: both levels of scales from the values; scale2 = largest magnitude / (6 * 448)

in   x       F32 or BF16 [rows, cols]       cols a multiple of 16
out  codes   U8 [rows, cols/2]
     scales  U8 [rows, cols/16]             e4m3
     scale2  F32 [1]";

/// Runs either operation.
///
/// # Errors
/// A sentence that names the tensor, expected and found.
pub(super) fn run(name: &str, given: &Tensors, place: Place) -> anyhow::Result<Tensors> {
    if let Place::Cuda(ordinal) = place {
        bail!(
            "--device cuda:{ordinal}: {name} runs on the cpu here; its kernels are called from Rust, by flashlane::cuda"
        );
    }
    let known: &[&str] = if name == QUANTIZE { &["x"] } else { &["codes", "scales", "scale2"] };
    if let Some(other) = given.keys().find(|k| !known.contains(&k.as_str())) {
        bail!("tensor {other}: {name} takes {}", known.join(", "));
    }
    if name == QUANTIZE { quantize(given) } else { dequantize(given) }
}

fn matrix<'a>(
    given: &'a Tensors,
    name: &str,
    dtypes: &[Dtype],
) -> anyhow::Result<(&'a Tensor, usize, usize)> {
    let tensor = given.get(name).with_context(|| format!("tensor {name} is missing"))?;
    if !dtypes.contains(&tensor.dtype) {
        bail!("tensor {name}: expected one of {dtypes:?}, found {:?}", tensor.dtype);
    }
    match tensor.shape[..] {
        [rows, cols] if rows * cols > 0 => Ok((tensor, rows, cols)),
        _ => bail!("tensor {name}: expected 2 dimensions that are not 0, found {:?}", tensor.shape),
    }
}

fn dequantize(given: &Tensors) -> anyhow::Result<Tensors> {
    let (codes, rows, half) = matrix(given, "codes", &[Dtype::U8])?;
    let (scales, scale_rows, scale_cols) = matrix(given, "scales", &[Dtype::U8, Dtype::F8_E4M3])?;
    let cols = 2 * half;
    if (scale_rows, scale_cols * nvfp4::BLOCK) != (rows, cols) {
        bail!(
            "tensor scales: expected [{rows}, {}] for {rows} x {cols}, found [{scale_rows}, {scale_cols}]",
            cols as f64 / nvfp4::BLOCK as f64
        );
    }
    let scale2 = given.get("scale2").context("tensor scale2 is missing")?;
    if scale2.dtype != Dtype::F32 || scale2.bytes.len() != 4 {
        bail!("tensor scale2: expected one F32, found {:?} {:?}", scale2.dtype, scale2.shape);
    }
    let mut out = vec![0f32; rows * cols];
    nvfp4::dequantize(&codes.bytes, &scales.bytes, scale2.elements::<f32>()[0], &mut out)?;
    Ok(Tensors::from([("out".into(), Tensor::new(Dtype::F32, &[rows, cols], &out))]))
}

fn quantize(given: &Tensors) -> anyhow::Result<Tensors> {
    let (x, rows, cols) = matrix(given, "x", &[Dtype::F32, Dtype::BF16])?;
    if !cols.is_multiple_of(nvfp4::BLOCK) {
        bail!("tensor x: cols must be a multiple of {}, found {cols}", nvfp4::BLOCK);
    }
    let values = x.floats();
    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
        bail!("tensor x: element {at} is {}, expected finite numbers", values[at]);
    }
    let amax = values.iter().fold(0f32, |most, v| most.max(v.abs()));
    let found = nvfp4::quantize(&values, nvfp4::scale2_for(amax))?;
    Ok(Tensors::from([
        ("codes".into(), Tensor::new(Dtype::U8, &[rows, cols / 2], &found.codes)),
        ("scales".into(), Tensor::new(Dtype::U8, &[rows, cols / nvfp4::BLOCK], &found.scales)),
        ("scale2".into(), Tensor::new(Dtype::F32, &[1], &[found.scale2])),
    ]))
}
