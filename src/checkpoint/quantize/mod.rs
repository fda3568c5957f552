//! Rewrites a checkpoint with quantised experts and linears, in the official names and layout.
//!
//! Streaming: one shard of the output is in memory at a time, the input stays mapped. Atomic: everything is written to a
//! directory named `.<out>.incomplete-<pid>` beside the output, read back as a checkpoint, and renamed; an interruption leaves
//! no `OUT`, and what it may leave has no `config.json` until its last moment. Draft and vision tensors are not carried over.

mod files;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Map, Value, json};

use self::files::{Staging, copy_companions, write, write_shard};
use self::stored::{Blob, Stored, dtype, exact_mxfp4, ids};
use super::weights::{Matrix, WeightFormat};
use super::{Checkpoint, CheckpointError, Item, Tensor};
use crate::format::{FormatError, amax, bf16, fp8_block, mxfp4, nvfp4};

/// Format of the routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertFormat {
    Nvfp4,
    Mxfp4,
}

/// Format of the attention projections and the shared experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseFormat {
    Fp8,
    Bf16,
}

#[derive(Clone, Copy, Debug)]
pub struct QuantizeOptions {
    pub experts: ExpertFormat,
    pub dense: DenseFormat,
    /// A shard is closed when it has reached this size.
    pub shard_bytes: u64,
}

impl QuantizeOptions {
    #[must_use]
    pub const fn new(experts: ExpertFormat, dense: DenseFormat) -> Self {
        Self { experts, dense, shard_bytes: 4 << 30 }
    }

    /// What a tensor is to become; `None` leaves it as it is.
    fn target(&self, item: &Item) -> Option<WeightFormat> {
        let Tensor::Matrix(matrix) = &item.tensor else { return None };
        let target = match (self.experts, self.dense) {
            (ExpertFormat::Nvfp4, _) if item.spec.role.is_expert() => WeightFormat::Nvfp4,
            (ExpertFormat::Mxfp4, _) if item.spec.role.is_expert() => WeightFormat::Mxfp4,
            (_, DenseFormat::Fp8) if item.spec.role.is_dense() => WeightFormat::Fp8Block,
            (_, DenseFormat::Bf16) if item.spec.role.is_dense() => WeightFormat::Bf16,
            _ => return None,
        };
        let same = matrix.format == target
            || (matrix.format == WeightFormat::Fp8BlockF32 && target == WeightFormat::Fp8Block);
        (!same).then_some(target)
    }
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Tensor about to be written.
    pub tensor: &'a str,
    /// Bytes of output before it, and in all.
    pub done: u64,
    pub total: u64,
}

/// Converts the checkpoint in `input` into the new directory `output`. `progress` is told of each tensor, and may break off.
///
/// # Errors
/// [`CheckpointError`]; `output` must not exist, and does not afterwards if this fails.
pub fn quantize(
    input: &Path,
    output: &Path,
    options: &QuantizeOptions,
    mut progress: impl FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<(), CheckpointError> {
    if output.exists() {
        return Err(CheckpointError::Quantize(format!("{} exists already", output.display())));
    }
    let checkpoint = Checkpoint::open(input)?;
    let staging = Staging::new(output)?;
    let job = Job::new(&checkpoint, *options);
    job.write_shards(&staging.path, &mut progress)?;
    copy_companions(input, &staging.path)?;
    let config = Value::Object(job.config());
    write(&staging.path.join("config.json"), format!("{config:#}\n").as_bytes())?;
    Checkpoint::open(&staging.path)?;
    staging.publish(output)
}

struct Job<'a> {
    checkpoint: &'a Checkpoint,
    options: QuantizeOptions,
    matrices: HashMap<&'a str, &'a Matrix>,
}

impl<'a> Job<'a> {
    fn new(checkpoint: &'a Checkpoint, options: QuantizeOptions) -> Self {
        let matrix = |item: &'a Item| match &item.tensor {
            Tensor::Matrix(m) => Some((item.spec.name.as_str(), m)),
            _ => None,
        };
        Self { checkpoint, options, matrices: checkpoint.items.iter().filter_map(matrix).collect() }
    }

    /// Items in shards, each with its size in the output.
    fn plan(&self) -> Vec<Vec<(&'a Item, u64)>> {
        let mut shards = vec![Vec::new()];
        let mut filled = 0;
        for item in &self.checkpoint.items {
            let bytes = self.output_bytes(item);
            if filled > 0 && filled + bytes > self.options.shard_bytes {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            if let Some(shard) = shards.last_mut() {
                shard.push((item, bytes));
            }
        }
        shards
    }

    fn output_bytes(&self, item: &Item) -> u64 {
        let Some(target) = self.options.target(item) else { return item.bytes() };
        let (rows, cols) = (item.spec.shape[0], item.spec.shape[1]);
        let scales = rows.div_ceil(target.scale_rows()) * target.scale_row_bytes(cols);
        (rows * target.row_bytes(cols) + scales) as u64
    }

    fn write_shards(
        &self,
        dir: &Path,
        progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Result<(), CheckpointError> {
        let shards = self.plan();
        let total = shards.iter().flatten().map(|(_, bytes)| bytes).sum();
        let (mut done, mut weight_map, mut size) = (0, Map::new(), 0);
        for (i, shard) in shards.iter().enumerate() {
            let file = match shards.len() {
                1 => "model.safetensors".to_owned(),
                n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
            };
            let mut blobs = Vec::new();
            for (item, bytes) in shard {
                if progress(Progress { tensor: &item.spec.name, done, total }).is_break() {
                    return Err(CheckpointError::Quantize(
                        "interrupted; nothing is left of the output".into(),
                    ));
                }
                blobs.extend(self.convert(item)?);
                done += bytes;
            }
            write_shard(&dir.join(&file), &blobs)?;
            size += blobs.iter().map(|b| b.data.len()).sum::<usize>();
            weight_map.extend(blobs.into_iter().map(|b| (b.name, Value::from(file.as_str()))));
        }
        if shards.len() > 1 {
            let index = json!({"metadata": {"total_size": size}, "weight_map": weight_map});
            write(&dir.join("model.safetensors.index.json"), format!("{index:#}\n").as_bytes())?;
        }
        Ok(())
    }

    fn convert(&self, item: &Item) -> Result<Vec<Blob>, CheckpointError> {
        let spec = &item.spec;
        match &item.tensor {
            Tensor::Ids(table) => Ok(vec![ids(spec, table)]),
            Tensor::Vector(v) => {
                Ok(vec![Blob::new(spec.name.clone(), dtype(v.format), &spec.shape, v.data.clone())])
            }
            Tensor::Matrix(matrix) => {
                if let Some(problem) = matrix.not_finite() {
                    return Err(CheckpointError::Tensors(vec![problem]));
                }
                let converted = match self.options.target(item) {
                    None => Stored::copy(matrix),
                    Some(target) => self.requantize(matrix, target),
                };
                let stored = converted.map_err(|e| {
                    CheckpointError::Quantize(format!("{} cannot be quantised: {e}", spec.name))
                })?;
                Ok(stored.blobs(spec))
            }
        }
    }

    fn requantize(&self, matrix: &Matrix, target: WeightFormat) -> Result<Stored, FormatError> {
        if target == WeightFormat::Nvfp4 {
            return self.to_nvfp4(matrix);
        }
        if let Some(exact) = exact_mxfp4(matrix).filter(|_| target == WeightFormat::Mxfp4) {
            return Ok(exact);
        }
        let values = matrix.decode();
        let (codes, scales) = match target {
            WeightFormat::Mxfp4 => mxfp4::quantize(&values)?,
            WeightFormat::Fp8Block => fp8_block::quantize(&values, matrix.cols)?,
            _ => {
                let mut codes = vec![0; 2 * values.len()];
                bf16::encode_into(&values, &mut codes);
                return Ok(Stored::new(WeightFormat::Bf16, codes, Vec::new(), 1.0));
            }
        };
        Ok(Stored::new(target, codes, scales, 1.0))
    }

    /// Gate and up projection of an expert share the second-level scale, and so the way they are converted.
    fn to_nvfp4(&self, matrix: &Matrix) -> Result<Stored, FormatError> {
        let group = self.group(matrix);
        if let Some(largest) = castable(&group) {
            let (codes, mx_scales) = joined(matrix);
            let (scale2, scales) = nvfp4::cast_scales(&codes, &mx_scales, largest)?;
            return Ok(Stored::new(WeightFormat::Nvfp4, codes, scales, scale2));
        }
        let maxima: Vec<f32> = group.iter().map(|m| amax(&m.decode())).collect();
        let q = nvfp4::quantize(&matrix.decode(), nvfp4::scale2_for(amax(&maxima)))?;
        Ok(Stored::new(WeightFormat::Nvfp4, q.codes, q.scales, q.scale2))
    }

    fn group<'m>(&'m self, matrix: &'m Matrix) -> Vec<&'m Matrix> {
        let partner = match &*matrix.name {
            name if name.ends_with(".w1.weight") => Some(name.replace(".w1.", ".w3.")),
            name if name.ends_with(".w3.weight") => Some(name.replace(".w3.", ".w1.")),
            _ => None,
        };
        let partner = partner.and_then(|name| self.matrices.get(name.as_str()).copied());
        std::iter::once(matrix).chain(partner).collect()
    }

    /// `config.json` with the quantisation that was written.
    fn config(&self) -> Map<String, Value> {
        let mut config = self.checkpoint.config_json.clone();
        config.insert("num_nextn_predict_layers".to_owned(), json!(0));
        config.insert("expert_dtype".to_owned(), json!("fp4"));
        let quantization = quantization_config(self.options, self.checkpoint.config.num_hidden_layers);
        config.insert("quantization_config".to_owned(), quantization);
        config
    }
}

/// The keys of the official checkpoints; loaders, ours included, decide per tensor.
fn quantization_config(options: QuantizeOptions, layers: usize) -> Value {
    let mut config = match options.dense {
        DenseFormat::Fp8 => json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                   "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}),
        DenseFormat::Bf16 if options.experts == ExpertFormat::Nvfp4 => json!({"quant_method": "modelopt"}),
        DenseFormat::Bf16 => json!({"quant_method": "mxfp4"}),
    };
    if options.experts == ExpertFormat::Nvfp4 {
        let quantized: Map<String, Value> = (0..layers)
            .map(|l| (format!("layers.{l}.ffn.experts"), json!({"quant_algo": "NVFP4", "group_size": 16})))
            .collect();
        let group = json!({"num_bits": 4, "type": "float", "group_size": 16, "dynamic": false});
        config["moe_quant_algo"] = json!("NVFP4");
        config["quant_algo"] = json!("MIXED_PRECISION");
        config["kv_cache_quant_algo"] = Value::Null;
        config["group_size"] = json!(16);
        config["config_groups"] =
            json!({"group_0": {"weights": group, "input_activations": group, "targets": ["Linear"]}});
        config["quantized_layers"] = Value::Object(quantized);
        config["ignore"] = json!(["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]);
    }
    config
}

/// Codes and scales of all parts.
fn joined(matrix: &Matrix) -> (Vec<u8>, Vec<u8>) {
    let codes = matrix.parts.iter().flat_map(|p| p.codes.iter().copied()).collect();
    (codes, matrix.parts.iter().flat_map(|p| p.scales.iter().copied()).collect())
}

/// The largest exponent of a group of MXFP4 matrices if all of them can become NVFP4 without loss.
fn castable(group: &[&Matrix]) -> Option<i32> {
    if group.iter().any(|m| m.format != WeightFormat::Mxfp4) {
        return None;
    }
    let parts = || group.iter().flat_map(|m| &m.parts);
    let largest = parts().map(|p| nvfp4::largest_exponent(&p.scales)).max()?;
    parts().all(|p| nvfp4::cast_scales(&p.codes, &p.scales, largest).is_ok()).then_some(largest)
}
