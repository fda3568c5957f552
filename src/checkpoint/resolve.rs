//! From the tensors of the files to those of the inventory: names, shapes and types are checked, formats decided, leftovers refused.
//!
//! Problems are collected, not returned at the first, so that one look at a bad checkpoint shows what is wrong with it.

use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::prelude::*;
use safetensors::Dtype;

use super::config::ModelConfig;
use super::error::{CheckpointError, TensorProblem};
use super::inventory::{Role, Spec, specs};
use super::map::Span;
use super::names::{self, Skip};
use super::safetensors::RawTensor;
use super::weights::{IdTable, Matrix, Part, Vector, WeightFormat};
use super::{Item, Skipped, Tensor};
use crate::format::fp8_block::BlockScales;
use crate::format::{FormatError, bf16, fp8_block, mxfp4, nvfp4};

/// The inventory's tensors, in its order, and what was passed over.
pub(super) fn resolve(
    config: &ModelConfig,
    tensors: Vec<RawTensor>,
) -> Result<(Vec<Item>, Vec<Skipped>), CheckpointError> {
    let mut resolver = Resolver::new(config, tensors);
    for spec in specs(config) {
        resolver.read(spec);
    }
    resolver.finish()
}

struct Resolver<'a> {
    config: &'a ModelConfig,
    /// By official name.
    tensors: HashMap<String, RawTensor>,
    used: HashSet<String>,
    items: Vec<Item>,
    skipped: BTreeMap<Skip, (usize, u64)>,
    problems: Vec<TensorProblem>,
}

impl<'a> Resolver<'a> {
    fn new(config: &'a ModelConfig, tensors: Vec<RawTensor>) -> Self {
        let mut new = Self {
            config,
            tensors: HashMap::with_capacity(tensors.len()),
            used: HashSet::new(),
            items: Vec::new(),
            skipped: BTreeMap::new(),
            problems: Vec::new(),
        };
        for tensor in tensors {
            new.take_in(tensor);
        }
        new
    }

    fn take_in(&mut self, tensor: RawTensor) {
        let name = names::official(&tensor.name);
        if let Some(part) = names::skip(&name, self.config) {
            let (tensors, bytes) = self.skipped.entry(part).or_default();
            (*tensors, *bytes) = (*tensors + 1, *bytes + tensor.data.len() as u64);
        } else if let Some(first) = self.tensors.get(&name) {
            let (first, second) = (first.name.clone(), tensor.name);
            self.problems.push(TensorProblem::Duplicate { name, first, second });
        } else {
            self.tensors.insert(name, tensor);
        }
    }

    fn read(&mut self, spec: Spec) {
        let read = match spec.role {
            Role::HashIds => self.read_ids(&spec).map(Tensor::Ids),
            role if role.is_vector() => self.read_vector(&spec).map(Tensor::Vector),
            _ => self.read_matrix(&spec).map(Tensor::Matrix),
        };
        match read {
            Ok(tensor) => self.items.push(Item { spec, tensor }),
            Err(problem) => self.problems.push(problem),
        }
    }

    fn find(&mut self, name: &str) -> Option<RawTensor> {
        let tensor = self.tensors.get(name)?.clone();
        self.used.insert(name.to_owned());
        Some(tensor)
    }

    fn read_matrix(&mut self, spec: &Spec) -> Result<Matrix, TensorProblem> {
        let Some(raw) = self.find(&spec.name) else { return self.read_fused(spec) };
        let quantisable = spec.role.is_dense() || spec.role.is_expert();
        match raw.dtype {
            Dtype::F32 => plain(spec, &raw, WeightFormat::F32),
            Dtype::BF16 => plain(spec, &raw, WeightFormat::Bf16),
            Dtype::F8_E4M3 if quantisable => self.read_fp8(spec, raw),
            Dtype::I8 | Dtype::U8 if quantisable => self.read_fp4(spec, raw),
            _ if quantisable => {
                self.claim(spec, &["scale", "weight_scale", "weight_scale_2", "weight_global_scale"]);
                Err(wrong_dtype(&raw, "F32, BF16, F8_E4M3, or I8 or U8 for FP4"))
            }
            _ => Err(wrong_dtype(&raw, "F32 or BF16")),
        }
    }

    /// e4m3 codes with the block scales beside them.
    fn read_fp8(&mut self, spec: &Spec, codes: RawTensor) -> Result<Matrix, TensorProblem> {
        self.claim(spec, &["scale", "weight_scale"]);
        check_shape(&codes, &spec.shape)?;
        let blocks: Vec<usize> = spec.shape.iter().map(|d| d.div_ceil(fp8_block::BLOCK)).collect();
        let scales = self.sibling(spec, &["scale", "weight_scale"], &blocks)?;
        let format = match scales.dtype {
            Dtype::F8_E8M0 | Dtype::U8 => WeightFormat::Fp8Block,
            Dtype::F32 => WeightFormat::Fp8BlockF32,
            _ => return Err(wrong_dtype(&scales, "F8_E8M0 or F32")),
        };
        Ok(matrix(spec, format, codes.data, scales.data, 1.0))
    }

    /// e2m1 pairs: NVFP4 if there is a second-level scale, else MXFP4.
    fn read_fp4(&mut self, spec: &Spec, codes: RawTensor) -> Result<Matrix, TensorProblem> {
        self.claim(spec, &["weight_scale", "weight_scale_2", "weight_global_scale"]);
        let (rows, cols) = (spec.shape[0], spec.shape[1]);
        check_shape(&codes, &[rows, cols / 2])?;
        let Some(scale2) = self.second_scale(spec)? else {
            let stem = stem(spec);
            if self.tensors.contains_key(&format!("{stem}.weight_scale")) {
                return Err(TensorProblem::Missing {
                    name: format!("{stem}.weight_scale_2"),
                    shape: Vec::new(),
                });
            }
            let scales = self.sibling(spec, &["scale"], &[rows, cols / mxfp4::BLOCK])?;
            return match scales.dtype {
                Dtype::F8_E8M0 | Dtype::U8 => {
                    Ok(matrix(spec, WeightFormat::Mxfp4, codes.data, scales.data, 1.0))
                }
                _ => Err(wrong_dtype(&scales, "F8_E8M0")),
            };
        };
        let scales = self.sibling(spec, &["weight_scale"], &[rows, cols / nvfp4::BLOCK])?;
        match scales.dtype {
            Dtype::F8_E4M3 => Ok(matrix(spec, WeightFormat::Nvfp4, codes.data, scales.data, scale2)),
            _ => Err(wrong_dtype(&scales, "F8_E4M3")),
        }
    }

    /// ModelOpt stores the multiplier; compressed-tensors stores its reciprocal under another name.
    fn second_scale(&mut self, spec: &Spec) -> Result<Option<f32>, TensorProblem> {
        let stem = stem(spec);
        if let Some(raw) = self.find(&format!("{stem}.weight_scale_2")) {
            return scalar(&raw).map(Some);
        }
        let Some(raw) = self.find(&format!("{stem}.weight_global_scale")) else { return Ok(None) };
        let reciprocal = scalar(&raw)?.recip();
        let bad = || TensorProblem::Scale { name: raw.name.clone(), index: 0 };
        reciprocal.is_finite().then_some(Some(reciprocal)).ok_or_else(bad)
    }

    /// Counts a weight's scales as known, so that one bad tensor is one problem.
    fn claim(&mut self, spec: &Spec, suffixes: &[&str]) {
        let stem = stem(spec);
        self.used.extend(suffixes.iter().map(|s| format!("{stem}.{s}")));
    }

    /// The first tensor of these suffixes that is there, which must have this shape.
    fn sibling(
        &mut self,
        spec: &Spec,
        suffixes: &[&str],
        shape: &[usize],
    ) -> Result<RawTensor, TensorProblem> {
        let stem = stem(spec);
        let found = suffixes.iter().find_map(|s| self.find(&format!("{stem}.{s}")));
        let missing =
            || TensorProblem::Missing { name: format!("{stem}.{}", suffixes[0]), shape: shape.to_vec() };
        let raw = found.ok_or_else(missing)?;
        check_shape(&raw, shape).map(|()| raw)
    }

    /// An expert out of the fused tensors of all experts: `gate_up_proj [E, 2I, D]`, `down_proj [E, D, I]`.
    fn read_fused(&mut self, spec: &Spec) -> Result<Matrix, TensorProblem> {
        let missing = || TensorProblem::Missing { name: spec.name.clone(), shape: spec.shape.clone() };
        let (prefix, expert, which) = expert_of(spec).ok_or_else(missing)?;
        let (fused, stacked, offset) = match which {
            "w1" => ("gate_up_proj", 2, 0),
            "w3" => ("gate_up_proj", 2, 1),
            _ => ("down_proj", 1, 0),
        };
        let raw = self.find(&format!("{prefix}.experts.{fused}")).ok_or_else(missing)?;
        let format = match raw.dtype {
            Dtype::F32 => WeightFormat::F32,
            Dtype::BF16 => WeightFormat::Bf16,
            _ => return Err(wrong_dtype(&raw, "F32 or BF16")),
        };
        check_shape(&raw, &[self.config.n_routed_experts, stacked * spec.shape[0], spec.shape[1]])?;
        let bytes = spec.shape[0] * format.row_bytes(spec.shape[1]);
        let start = (expert * stacked + offset) * bytes;
        let data = raw.data.slice(start..start + bytes).ok_or_else(missing)?;
        Ok(matrix(spec, format, data, Span::empty(), 1.0))
    }

    fn read_vector(&mut self, spec: &Spec) -> Result<Vector, TensorProblem> {
        let missing = || TensorProblem::Missing { name: spec.name.clone(), shape: spec.shape.clone() };
        let raw = self.find(&spec.name).ok_or_else(missing)?;
        check_shape(&raw, &spec.shape)?;
        let (format, values) = match raw.dtype {
            Dtype::F32 => (WeightFormat::F32, f32_values(&raw.data)),
            Dtype::BF16 => {
                let mut values = vec![0.0; raw.data.len() / 2];
                bf16::decode_into(&raw.data, &mut values);
                (WeightFormat::Bf16, values)
            }
            _ => return Err(wrong_dtype(&raw, "F32 or BF16")),
        };
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            let value = values[index].to_string();
            return Err(TensorProblem::NotFinite { name: raw.name, index, value });
        }
        let (name, shape) = (spec.name.as_str().into(), spec.shape.clone());
        Ok(Vector { name, shape, values: values.into(), format, data: raw.data })
    }

    fn read_ids(&mut self, spec: &Spec) -> Result<IdTable, TensorProblem> {
        let missing = || TensorProblem::Missing { name: spec.name.clone(), shape: spec.shape.clone() };
        let raw = self.find(&spec.name).ok_or_else(missing)?;
        check_shape(&raw, &spec.shape)?;
        let wide: Vec<i64> = match raw.dtype {
            Dtype::I64 => raw.data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            Dtype::I32 => {
                raw.data.as_chunks::<4>().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect()
            }
            _ => return Err(wrong_dtype(&raw, "I64 or I32")),
        };
        let (cols, experts) = (spec.shape[1], self.config.n_routed_experts);
        if let Some(i) = wide.iter().position(|id| !(0..experts as i64).contains(id)) {
            return Err(TensorProblem::Expert { name: raw.name, row: i / cols, found: wide[i], experts });
        }
        let ids = wide.into_iter().map(|id| id as i32).collect();
        Ok(IdTable { name: spec.name.as_str().into(), rows: spec.shape[0], cols, ids })
    }

    /// The items, if nothing is wrong and nothing is left over.
    fn finish(mut self) -> Result<(Vec<Item>, Vec<Skipped>), CheckpointError> {
        let unknown = self.tensors.iter().filter(|(official, _)| !self.used.contains(*official));
        let mut unknown: Vec<&String> = unknown.map(|(_, raw)| &raw.name).collect();
        unknown.sort();
        self.problems.extend(unknown.into_iter().map(|name| TensorProblem::Unknown { name: name.clone() }));
        self.problems.extend(self.items.par_iter().filter_map(bad_scale).collect::<Vec<_>>());
        if !self.problems.is_empty() {
            return Err(CheckpointError::Tensors(self.problems));
        }
        let skipped =
            self.skipped.into_iter().map(|(part, (tensors, bytes))| Skipped { part, tensors, bytes });
        Ok((self.items, skipped.collect()))
    }
}

/// Name without `.weight`.
fn stem(spec: &Spec) -> String {
    spec.name.strip_suffix(".weight").unwrap_or(&spec.name).to_owned()
}

/// Layer prefix, index and projection of a routed expert.
fn expert_of(spec: &Spec) -> Option<(&str, usize, &str)> {
    if !spec.role.is_expert() {
        return None;
    }
    let (prefix, rest) = spec.name.split_once(".experts.")?;
    let mut rest = rest.split('.');
    Some((prefix, rest.next()?.parse().ok()?, rest.next()?))
}

fn plain(spec: &Spec, raw: &RawTensor, format: WeightFormat) -> Result<Matrix, TensorProblem> {
    check_shape(raw, &spec.shape)?;
    Ok(matrix(spec, format, raw.data.clone(), Span::empty(), 1.0))
}

fn matrix(spec: &Spec, format: WeightFormat, codes: Span, scales: Span, scale2: f32) -> Matrix {
    let (rows, cols) = (spec.shape[0], spec.shape[1]);
    let parts = vec![Part { first_row: 0, rows, codes, scales, scale2 }];
    Matrix { name: spec.name.as_str().into(), rows, cols, format, parts }
}

fn check_shape(raw: &RawTensor, expected: &[usize]) -> Result<(), TensorProblem> {
    if raw.shape == expected {
        return Ok(());
    }
    let (name, expected, found) = (raw.name.clone(), expected.to_vec(), raw.shape.clone());
    Err(TensorProblem::Shape { name, expected, found })
}

fn wrong_dtype(raw: &RawTensor, expected: &'static str) -> TensorProblem {
    TensorProblem::Dtype { name: raw.name.clone(), expected, found: format!("{:?}", raw.dtype) }
}

/// An f32 scale of shape `[]` or `[1]`, finite and not negative.
fn scalar(raw: &RawTensor) -> Result<f32, TensorProblem> {
    if raw.dtype != Dtype::F32 {
        return Err(wrong_dtype(raw, "F32"));
    }
    match f32_values(&raw.data).as_slice() {
        [value] if value.is_finite() && *value >= 0.0 => Ok(*value),
        [_] => Err(TensorProblem::Scale { name: raw.name.clone(), index: 0 }),
        _ => check_shape(raw, &[]).map(|()| 0.0),
    }
}

fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Reads every scale of a matrix once.
fn bad_scale(item: &Item) -> Option<TensorProblem> {
    let Tensor::Matrix(matrix) = &item.tensor else { return None };
    let bad = matrix.parts.iter().find_map(|part| {
        let check = match matrix.format {
            WeightFormat::F32 | WeightFormat::Bf16 => Ok(()),
            WeightFormat::Fp8Block => BlockScales::Ue8m0(&part.scales).check(),
            WeightFormat::Fp8BlockF32 => BlockScales::F32(&part.scales).check(),
            WeightFormat::Nvfp4 => nvfp4::check_scales(&part.scales),
            WeightFormat::Mxfp4 => mxfp4::check_scales(&part.scales),
        };
        check.err()
    })?;
    let index = if let FormatError::Scale { index } = bad { index } else { 0 };
    let stem = item.spec.name.strip_suffix(".weight").unwrap_or(&item.spec.name);
    let suffix = if matrix.format == WeightFormat::Nvfp4 { "weight_scale" } else { "scale" };
    Some(TensorProblem::Scale { name: format!("{stem}.{suffix}"), index })
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
