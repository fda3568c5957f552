//! Random checkpoints for tests: every value is a pure function of (seed, tensor name, index), so none is ever stored.
//!
//! The generator, exactly, because a twin in Python (`tools/golden`) computes the same bits:
//!
//! ```text
//! h = FNV-1a, 64 bits, of the UTF-8 bytes of the official tensor name
//! z = seed * 0x9E3779B97F4A7C15 + h + (index + 1) * 0xD1B54A32D192ED03          (mod 2^64)
//! z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
//! v = ((z >> 40) + 0.5) * 2^-23 - 1                                             (f64, in (-1, 1))
//! weight = mean + sqrt(3) * std * v    in f64, rounded to f32, then to bf16 unless the official layout is f32
//! ```
//!
//! Mean and standard deviation depend on the tensor's role, see [`distribution`]: chosen so that every mechanism of the model
//! is alive (clamps bite, sinks and biases matter, a transposed Sinkhorn matrix shows). Row `t` of a hash table is the head of
//! a Fisher-Yates shuffle of the experts, step `j` swapping with `j + z(t * 64 + j) mod (E - j)`.

use std::path::Path;

use half::bf16;
use safetensors::tensor::{Dtype, TensorView};

use super::config::ModelConfig;
use super::inventory::{Role, Spec, specs};
use super::{Checkpoint, CheckpointError};
use crate::format::rope::Yarn;

/// The 64 random bits of a tensor's elements.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    key: u64,
}

impl Counter {
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let fnv = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        let h = name.bytes().fold(0xCBF2_9CE4_8422_2325, fnv);
        Self { key: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(h) }
    }

    #[must_use]
    pub fn bits(self, index: u64) -> u64 {
        let mut z = self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(0xD1B5_4A32_D192_ED03));
        z ^= z >> 30;
        z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z ^= z >> 27;
        z = z.wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in (-1, 1), symmetric about 0.
    #[must_use]
    pub fn uniform(self, index: u64) -> f64 {
        ((self.bits(index) >> 40) as f64 + 0.5) / f64::from(1 << 23) - 1.0
    }
}

/// Mean and standard deviation of one element.
#[must_use]
pub fn distribution(spec: &Spec, index: usize) -> (f64, f64) {
    let fan_in = *spec.shape.last().unwrap_or(&1) as f64;
    match spec.role {
        Role::Embed => (0.0, 0.7),
        Role::Norm => (1.0, 0.1),
        Role::Sink | Role::Ape => (0.0, 1.0),
        Role::RouterBias => (0.0, 0.1),
        Role::HyperScale => (0.8, 0.1),
        Role::HyperHeadBase => (-1.1, 0.3),
        Role::HyperBase => hyper_base(spec.shape[0], index),
        Role::SharedGateUp | Role::ExpertGateUp => (0.0, 2.0 / fan_in.sqrt()),
        Role::Head
        | Role::HyperFunc
        | Role::Attention
        | Role::Compressor
        | Role::IndexWeights
        | Role::Router
        | Role::SharedDown
        | Role::ExpertDown
        | Role::HashIds => (0.0, 1.0 / fan_in.sqrt()),
    }
}

/// `[pre n, post n, comb n n]`, the comb leaning to its diagonal; `len = (2 + n) n`.
fn hyper_base(len: usize, index: usize) -> (f64, f64) {
    let n = (1..=len).find(|n| (2 + n) * n >= len).unwrap_or(1);
    match index {
        i if i < n => (-1.1, 0.5),
        i if i < 2 * n => (0.0, 0.5),
        i if (i - 2 * n).is_multiple_of(n + 1) => (2.0, 1.0),
        _ => (0.0, 1.0),
    }
}

/// Bytes of one tensor in the official unquantised layout.
#[must_use]
pub fn tensor(config: &ModelConfig, seed: u64, spec: &Spec) -> (Dtype, Vec<u8>) {
    let counter = Counter::new(seed, &spec.name);
    let len: usize = spec.shape.iter().product();
    if spec.role == Role::HashIds {
        let rows =
            (0..spec.shape[0]).flat_map(|t| hash_row(counter, t, spec.shape[1], config.n_routed_experts));
        return (Dtype::I64, rows.flat_map(i64::to_le_bytes).collect());
    }
    let values = (0..len).map(|i| {
        let (mean, std) = distribution(spec, i);
        (mean + 3f64.sqrt() * std * counter.uniform(i as u64)) as f32
    });
    if spec.role.is_f32() {
        (Dtype::F32, values.flat_map(f32::to_le_bytes).collect())
    } else {
        (Dtype::BF16, values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect())
    }
}

fn hash_row(counter: Counter, row: usize, k: usize, experts: usize) -> Vec<i64> {
    let mut ids: Vec<i64> = (0..experts as i64).collect();
    for j in 0..k {
        let pick = counter.bits((row * 64 + j) as u64) % (experts - j) as u64;
        ids.swap(j, j + pick as usize);
    }
    ids.truncate(k);
    ids
}

/// All tensors as one safetensors file.
///
/// # Errors
/// If the file cannot be laid out.
pub fn safetensors(config: &ModelConfig, seed: u64) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let tensors: Vec<_> = specs(config).into_iter().map(|s| (tensor(config, seed, &s), s)).collect();
    let mut views = Vec::with_capacity(tensors.len());
    for ((dtype, data), spec) in &tensors {
        views.push((&spec.name, TensorView::new(*dtype, spec.shape.clone(), data)?));
    }
    safetensors::serialize(views, None)
}

/// A checkpoint in memory.
///
/// # Errors
/// As [`Checkpoint::from_bytes`].
pub fn checkpoint(config: &ModelConfig, seed: u64) -> Result<Checkpoint, CheckpointError> {
    let file = safetensors(config, seed).map_err(|e| CheckpointError::file("synthetic", e.to_string()))?;
    Checkpoint::from_bytes(&json(config), file)
}

/// Writes a checkpoint directory.
///
/// # Errors
/// I/O.
pub fn write(dir: &Path, config: &ModelConfig, seed: u64) -> Result<(), CheckpointError> {
    let file = safetensors(config, seed).map_err(|e| CheckpointError::file("synthetic", e.to_string()))?;
    for (name, bytes) in [("config.json", json(config)), ("model.safetensors", file)] {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|e| CheckpointError::io(&path, e))?;
    }
    Ok(())
}

fn json(config: &ModelConfig) -> Vec<u8> {
    serde_json::Value::Object(config.to_json()).to_string().into_bytes()
}

/// The smallest model with a layer of each kind: window and hash-routed, ratio 4, ratio 128.
#[must_use]
pub fn tiny_config() -> ModelConfig {
    ModelConfig {
        hidden_size: 128,
        num_hidden_layers: 3,
        num_attention_heads: 2,
        head_dim: 512,
        qk_rope_head_dim: 64,
        q_lora_rank: 128,
        o_lora_rank: 128,
        o_groups: 1,
        sliding_window: 128,
        compress_ratios: vec![0, 4, 128],
        num_draft_layers: 1,
        rope_theta: 10_000.0,
        compress_rope_theta: 160_000.0,
        yarn: Some(Yarn {
            factor: 16.0,
            original_max_position_embeddings: 65536,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }),
        max_position_embeddings: 4096,
        index_n_heads: 2,
        index_head_dim: 128,
        index_topk: 8,
        n_routed_experts: 4,
        num_experts_per_tok: 2,
        moe_intermediate_size: 128,
        routed_scaling_factor: 1.5,
        swiglu_limit: 2.0,
        num_hash_layers: 1,
        hc_mult: 4,
        hc_sinkhorn_iters: 20,
        hc_eps: 1e-6,
        rms_norm_eps: 1e-6,
        vocab_size: 96,
        bos_token_id: 0,
        eos_token_id: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by the Python twin.
    #[test]
    fn the_generator_is_pinned() {
        let embed = Counter::new(1, "embed.weight");
        assert_eq!(embed.bits(0), 0xa205_eb0d_5c1d_cb04);
        assert_eq!(embed.bits(65536), 0x06be_2e44_b41f_043b);
        assert_eq!(Counter::new(0, "embed.weight").bits(131_071), 0xdd1f_5c02_38ae_bf0f);
        let seed = 9_223_372_036_854_788_153;
        assert_eq!(Counter::new(seed, "embed.weight").bits(0), 0x60a0_d942_ef7c_f318);
    }

    #[test]
    fn values_and_rounding_are_pinned() {
        let spec = Spec { name: "embed.weight".into(), shape: vec![512, 256], role: Role::Embed };
        let (dtype, bytes) = tensor(&tiny_config(), 1, &spec);
        let at = |i: usize| bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f64();
        assert_eq!(dtype, Dtype::BF16);
        assert_eq!([0, 65536, 131_071].map(at), [0.322_265_625, -1.148_437_5, -0.703_125]);
    }

    #[test]
    fn hash_rows_are_distinct_and_pinned() {
        let counter = Counter::new(1, "layers.0.ffn.gate.tid2eid");
        let rows: Vec<Vec<i64>> = (0..3).map(|t| hash_row(counter, t, 3, 8)).collect();
        assert_eq!(rows, PINNED_ROWS);
    }

    const PINNED_ROWS: [[i64; 3]; 3] = [[2, 3, 4], [3, 5, 4], [3, 2, 4]];

    #[test]
    fn moments_are_as_asked() {
        let spec = Spec { name: "x.weight".into(), shape: vec![100, 100], role: Role::ExpertGateUp };
        let counter = Counter::new(7, &spec.name);
        let values: Vec<f64> = (0..10_000).map(|i| 3f64.sqrt() * 0.2 * counter.uniform(i)).collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let std = (values.iter().map(|v| v * v).sum::<f64>() / 1e4).sqrt();
        assert_eq!(distribution(&spec, 5), (0.0, 0.2));
        assert!(mean.abs() < 0.01 && (std - 0.2).abs() < 0.005, "{mean} {std}");
    }

    #[test]
    fn the_comb_block_leans_to_its_diagonal() {
        let means: Vec<f64> = (0..24).map(|i| hyper_base(24, i).0).collect();
        assert_eq!(means[..8], [-1.1, -1.1, -1.1, -1.1, 0.0, 0.0, 0.0, 0.0]);
        let diagonal: Vec<usize> = (8..24).filter(|i| means[*i] == 2.0).collect();
        assert_eq!(diagonal, [8, 13, 18, 23]);
    }
}
