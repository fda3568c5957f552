//! `config.json`: every key that the model needs, read once, with its constraint checked.
//!
//! Two spellings are read: the official one, and the one `transformers` writes (`layer_types`, `mlp_layer_types`,
//! `rope_parameters`). Which layer is of which kind is never guessed. Constants that kernels are built for (head 512, rope 64,
//! index head 128, window 128, four streams) are demanded here, so that nothing later has to doubt them.

mod keys;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use self::keys::{Keys, check_architecture, check_fixed};
use super::CheckpointError;
use crate::format::rope::{RopeParams, Yarn};

/// The shape of one DeepSeek-V4 model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub head_dim: usize,
    pub qk_rope_head_dim: usize,
    pub q_lora_rank: usize,
    pub o_lora_rank: usize,
    pub o_groups: usize,
    pub sliding_window: usize,
    /// One for each layer of the trunk: 0, 4 or 128.
    pub compress_ratios: Vec<usize>,
    /// Draft layers that the checkpoint may hold beyond the trunk; they are not loaded.
    pub num_draft_layers: usize,
    pub rope_theta: f64,
    pub compress_rope_theta: f64,
    pub yarn: Option<Yarn>,
    pub max_position_embeddings: usize,
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    pub index_topk: usize,
    pub n_routed_experts: usize,
    pub num_experts_per_tok: usize,
    pub moe_intermediate_size: usize,
    pub routed_scaling_factor: f32,
    /// 0 is none.
    pub swiglu_limit: f32,
    pub num_hash_layers: usize,
    pub hc_mult: usize,
    pub hc_sinkhorn_iters: usize,
    pub hc_eps: f32,
    pub rms_norm_eps: f32,
    pub vocab_size: usize,
    pub bos_token_id: u32,
    pub eos_token_id: u32,
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// The window alone.
    Window,
    /// Window and the best rows of ratio 4, chosen by the indexer.
    C4,
    /// Window and all rows of ratio 128.
    C128,
}

impl ModelConfig {
    /// Reads `config.json`; also returns the object itself.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] names the key; [`CheckpointError::Unsupported`] names the architecture.
    pub fn from_json(bytes: &[u8]) -> Result<(Self, Map<String, Value>), CheckpointError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|e| CheckpointError::file("config.json", format!("is not JSON: {e}")))?;
        let Value::Object(object) = value else {
            return Err(CheckpointError::file("config.json", "is not an object"));
        };
        check_architecture(&object)?;
        check_fixed(&object)?;
        let config = Keys { object: &object }.read()?;
        config.check()?;
        Ok((config, object))
    }

    #[must_use]
    pub fn kind(&self, layer: usize) -> LayerKind {
        match self.compress_ratios[layer] {
            4 => LayerKind::C4,
            128 => LayerKind::C128,
            _ => LayerKind::Window,
        }
    }

    /// Whether a layer routes by token id.
    #[must_use]
    pub const fn is_hash(&self, layer: usize) -> bool {
        layer < self.num_hash_layers
    }

    /// The rotary embedding of everything in a layer.
    #[must_use]
    pub fn rope(&self, layer: usize) -> RopeParams {
        match self.kind(layer) {
            LayerKind::Window => RopeParams { theta: self.rope_theta, yarn: None },
            LayerKind::C4 | LayerKind::C128 => {
                RopeParams { theta: self.compress_rope_theta, yarn: self.yarn }
            }
        }
    }

    /// The official `config.json` of this model, quantisation apart.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let ratios: Vec<usize> = self
            .compress_ratios
            .iter()
            .copied()
            .chain(std::iter::repeat_n(0, self.num_draft_layers))
            .collect();
        let yarn = self.yarn.map(|y| {
            json!({"type": "yarn", "factor": y.factor, "original_max_position_embeddings": y.original_max_position_embeddings,
                   "beta_fast": y.beta_fast, "beta_slow": y.beta_slow})
        });
        let pairs = [
            ("architectures", json!(["DeepseekV4ForCausalLM"])),
            ("model_type", json!("deepseek_v4")),
            ("hidden_size", json!(self.hidden_size)),
            ("num_hidden_layers", json!(self.num_hidden_layers)),
            ("num_attention_heads", json!(self.num_attention_heads)),
            ("num_key_value_heads", json!(1)),
            ("head_dim", json!(self.head_dim)),
            ("qk_rope_head_dim", json!(self.qk_rope_head_dim)),
            ("q_lora_rank", json!(self.q_lora_rank)),
            ("o_lora_rank", json!(self.o_lora_rank)),
            ("o_groups", json!(self.o_groups)),
            ("sliding_window", json!(self.sliding_window)),
            ("compress_ratios", json!(ratios)),
            ("rope_theta", json!(self.rope_theta)),
            ("compress_rope_theta", json!(self.compress_rope_theta)),
            ("rope_scaling", json!(yarn)),
            ("max_position_embeddings", json!(self.max_position_embeddings)),
            ("index_n_heads", json!(self.index_n_heads)),
            ("index_head_dim", json!(self.index_head_dim)),
            ("index_topk", json!(self.index_topk)),
            ("n_routed_experts", json!(self.n_routed_experts)),
            ("n_shared_experts", json!(1)),
            ("num_experts_per_tok", json!(self.num_experts_per_tok)),
            ("moe_intermediate_size", json!(self.moe_intermediate_size)),
            ("scoring_func", json!("sqrtsoftplus")),
            ("topk_method", json!("noaux_tc")),
            ("norm_topk_prob", json!(true)),
            ("routed_scaling_factor", decimal(self.routed_scaling_factor)),
            ("swiglu_limit", decimal(self.swiglu_limit)),
            ("num_hash_layers", json!(self.num_hash_layers)),
            ("hc_mult", json!(self.hc_mult)),
            ("hc_sinkhorn_iters", json!(self.hc_sinkhorn_iters)),
            ("hc_eps", decimal(self.hc_eps)),
            ("rms_norm_eps", decimal(self.rms_norm_eps)),
            ("num_nextn_predict_layers", json!(self.num_draft_layers)),
            ("vocab_size", json!(self.vocab_size)),
            ("bos_token_id", json!(self.bos_token_id)),
            ("eos_token_id", json!(self.eos_token_id)),
            ("tie_word_embeddings", json!(false)),
            ("attention_bias", json!(false)),
            ("hidden_act", json!("silu")),
            ("torch_dtype", json!("bfloat16")),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// What kernels and formats rely on.
    fn check(&self) -> Result<(), CheckpointError> {
        let exact = [
            ("head_dim", self.head_dim, 512),
            ("qk_rope_head_dim", self.qk_rope_head_dim, 64),
            ("sliding_window", self.sliding_window, 128),
            ("index_head_dim", self.index_head_dim, 128),
            ("hc_mult", self.hc_mult, 4),
        ];
        for (key, found, expected) in exact {
            ensure(found == expected, key, || format!("must be {expected}, found {found}"))?;
        }
        ensure(self.num_attention_heads.is_multiple_of(self.o_groups), "num_attention_heads", || {
            format!("must be a multiple of o_groups ({}), found {}", self.o_groups, self.num_attention_heads)
        })?;
        let multiples = [
            ("hidden_size", self.hidden_size),
            ("q_lora_rank", self.q_lora_rank),
            ("moe_intermediate_size", self.moe_intermediate_size),
            ("o_groups * o_lora_rank", self.o_groups * self.o_lora_rank),
        ];
        for (key, found) in multiples {
            ensure(found.is_multiple_of(128), key, || format!("must be a multiple of 128, found {found}"))?;
        }
        let ranges = [
            ("num_experts_per_tok", self.num_experts_per_tok, self.n_routed_experts, "n_routed_experts"),
            ("num_hash_layers", self.num_hash_layers, self.num_hidden_layers, "num_hidden_layers"),
        ];
        // What lists, memory and time of a step grow with before any tensor's shape is looked at.
        let most = [
            ("num_hidden_layers", self.num_hidden_layers, 1024),
            ("num_hidden_layers * n_routed_experts", self.num_hidden_layers * self.n_routed_experts, 1 << 17),
            ("index_topk", self.index_topk, 16384),
            ("hc_sinkhorn_iters", self.hc_sinkhorn_iters, 1000),
        ];
        for (key, found, limit) in most {
            ensure(found <= limit, key, || format!("must be at most {limit}, found {found}"))?;
        }
        for (key, found, limit, of) in ranges {
            ensure(found <= limit, key, || format!("must be at most {of} ({limit}), found {found}"))?;
        }
        ensure(self.compress_ratios.iter().all(|r| [0, 4, 128].contains(r)), "compress_ratios", || {
            format!("must be of 0, 4 and 128, found {:?}", self.compress_ratios)
        })
    }
}

/// The shortest decimal that is this f32, so that a file says `1e-6`.
fn decimal(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or(f64::from(value)))
}

fn ensure(ok: bool, key: &str, problem: impl FnOnce() -> String) -> Result<(), CheckpointError> {
    if ok { Ok(()) } else { Err(CheckpointError::Config { key: key.to_owned(), problem: problem() }) }
}
