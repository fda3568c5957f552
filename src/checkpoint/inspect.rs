//! What a checkpoint holds, as a report for people and programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::config::LayerKind;
use super::inventory::Role;
use super::weights::{Matrix, WeightFormat};
use super::{Checkpoint, Item, Skipped, Tensor};
use crate::format::{e4m3, nvfp4};

/// A whole checkpoint in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub num_hidden_layers: usize,
    pub hidden_size: usize,
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    /// Elements of all tensors but id tables.
    pub parameters: u64,
    /// Of the tensors that are loaded, scales included.
    pub bytes: u64,
    pub formats: BTreeMap<WeightFormat, FormatReport>,
    pub layers: Vec<LayerReport>,
    /// If any matrix is NVFP4.
    pub nvfp4: Option<Nvfp4Report>,
    pub skipped: Vec<Skipped>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FormatReport {
    pub tensors: u64,
    pub parameters: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerReport {
    pub layer: usize,
    pub attention: LayerKind,
    pub hash_routed: bool,
    /// Formats of the attention projections and the shared expert.
    pub dense: Vec<WeightFormat>,
    /// Formats of the routed experts.
    pub experts: Vec<WeightFormat>,
    pub bytes: u64,
}

/// Where the NVFP4 scales come from: all powers of two means a lossless cast from MXFP4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nvfp4Report {
    pub matrices: u64,
    /// Matrices whose scales, of both levels, are all powers of two.
    pub power_of_two: u64,
    /// Matrices that are MXFP4 matrices, to the bit.
    pub exact_mxfp4: u64,
}

impl Nvfp4Report {
    #[must_use]
    pub const fn all_power_of_two(&self) -> bool {
        self.matrices == self.power_of_two
    }
}

impl Checkpoint {
    /// Walks all tensors; reads NVFP4 scales, nothing else.
    #[must_use]
    pub fn inspect(&self) -> Report {
        let mut formats: BTreeMap<WeightFormat, FormatReport> = BTreeMap::new();
        let mut nvfp4 = Nvfp4Report::default();
        for item in &self.items {
            if let Tensor::Matrix(matrix) = &item.tensor {
                count_nvfp4(&mut nvfp4, matrix);
            }
            if let Some(format) = item.format() {
                let entry = formats.entry(format).or_default();
                entry.tensors += 1;
                entry.parameters += item.parameters();
                entry.bytes += item.bytes();
            }
        }
        Report {
            num_hidden_layers: self.config.num_hidden_layers,
            hidden_size: self.config.hidden_size,
            vocab_size: self.config.vocab_size,
            max_position_embeddings: self.config.max_position_embeddings,
            parameters: formats.values().map(|f| f.parameters).sum(),
            bytes: self.items.iter().map(Item::bytes).sum(),
            formats,
            layers: self.layer_reports(),
            nvfp4: (nvfp4.matrices > 0).then_some(nvfp4),
            skipped: self.skipped.clone(),
        }
    }

    fn layer_reports(&self) -> Vec<LayerReport> {
        let mut reports: Vec<LayerReport> = (0..self.config.num_hidden_layers)
            .map(|layer| LayerReport {
                layer,
                attention: self.config.kind(layer),
                hash_routed: self.config.is_hash(layer),
                dense: Vec::new(),
                experts: Vec::new(),
                bytes: 0,
            })
            .collect();
        for item in &self.items {
            let layer =
                item.spec.name.strip_prefix("layers.").and_then(|n| n.split('.').next()?.parse().ok());
            if let Some(report) = layer.and_then(|l: usize| reports.get_mut(l)) {
                report.add(item);
            }
        }
        reports
    }
}

impl LayerReport {
    fn add(&mut self, item: &Item) {
        self.bytes += item.bytes();
        let list = match item.spec.role {
            role if role.is_dense() => &mut self.dense,
            role if role.is_expert() => &mut self.experts,
            _ => return,
        };
        if let Some(format) = item.format().filter(|f| !list.contains(f)) {
            list.push(format);
            list.sort_unstable();
        }
    }
}

impl Item {
    /// Storage format; `None` for id tables.
    #[must_use]
    pub fn format(&self) -> Option<WeightFormat> {
        match &self.tensor {
            Tensor::Matrix(m) => Some(m.format),
            Tensor::Vector(v) => Some(v.format),
            Tensor::Ids(_) => None,
        }
    }

    /// Bytes as loaded: codes, scales, or decoded ids.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = match &self.tensor {
            Tensor::Matrix(m) => m.bytes(),
            Tensor::Vector(v) => v.data.len(),
            Tensor::Ids(t) => 4 * t.ids.len(),
        };
        bytes as u64
    }

    fn parameters(&self) -> u64 {
        if self.spec.role == Role::HashIds { 0 } else { self.spec.shape.iter().map(|d| *d as u64).product() }
    }
}

fn count_nvfp4(report: &mut Nvfp4Report, matrix: &Matrix) {
    if matrix.format != WeightFormat::Nvfp4 {
        return;
    }
    let power = |byte: &u8| nvfp4::power_of_two(e4m3::decode(*byte)).is_some();
    let powers =
        matrix.parts.iter().all(|p| nvfp4::power_of_two(p.scale2).is_some() && p.scales.iter().all(power));
    let exact = powers && matrix.parts.iter().all(|p| nvfp4::as_mxfp4_scales(&p.scales, p.scale2).is_some());
    report.matrices += 1;
    report.power_of_two += u64::from(powers);
    report.exact_mxfp4 += u64::from(exact);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::synthetic::{self, tiny_config};

    #[test]
    fn the_report_counts_every_tensor_once() {
        let report = synthetic::checkpoint(&tiny_config(), 3).unwrap().inspect();
        let specs = crate::checkpoint::specs(&tiny_config());
        let expected: usize =
            specs.iter().filter(|s| s.role != Role::HashIds).map(|s| s.shape.iter().product::<usize>()).sum();
        assert_eq!(report.parameters, expected as u64);
        assert_eq!(report.formats.values().map(|f| f.tensors).sum::<u64>(), specs.len() as u64 - 1);
        assert_eq!(
            report.layers.iter().map(|l| l.attention).collect::<Vec<_>>(),
            [LayerKind::Window, LayerKind::C4, LayerKind::C128]
        );
        assert!(report.layers.iter().all(|l| l.experts == [WeightFormat::Bf16]));
        assert!(report.nvfp4.is_none());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["layers"][1]["attention"], "c4");
        assert!(json["formats"]["bf16"]["bytes"].as_u64().unwrap() > 0);
    }
}
