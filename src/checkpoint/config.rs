//! `config.json`: every key that the model needs, read once, with its constraint checked.
//!
//! Two spellings are read: the official one, and the one `transformers` writes (`layer_types`, `mlp_layer_types`,
//! `rope_parameters`). Which layer is of which kind is never guessed. Constants that kernels are built for (head 512, rope 64,
//! index head 128, window 128, four streams) are demanded here, so that nothing later has to doubt them.

use serde_json::{Map, Value, json};

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

/// Refuses other models by name.
fn check_architecture(object: &Map<String, Value>) -> Result<(), CheckpointError> {
    let text = |v: Option<&Value>| v.and_then(Value::as_str).map(str::to_owned);
    let model_type = text(object.get("model_type"));
    let class = text(object.get("architectures").and_then(|a| a.get(0)));
    match (model_type.as_deref(), class.as_deref()) {
        (Some("deepseek_v4"), None | Some("DeepseekV4ForCausalLM"))
        | (None, Some("DeepseekV4ForCausalLM")) => Ok(()),
        (Some("deepseek_v41"), _) => Err(CheckpointError::Unsupported(
            "this is DeepSeek-V4.1 (deepseek_v41), another architecture with engram memory and shared KV; \
             flashlane serves deepseek_v4"
                .to_owned(),
        )),
        (model_type, class) => Err(CheckpointError::Unsupported(format!(
            "model_type {} with architecture {} is not served; flashlane serves deepseek_v4 (DeepseekV4ForCausalLM)",
            model_type.unwrap_or("(missing)"),
            class.unwrap_or("(missing)")
        ))),
    }
}

/// Keys that may be absent but whose other values would mean another model.
fn check_fixed(object: &Map<String, Value>) -> Result<(), CheckpointError> {
    let fixed = [
        ("num_key_value_heads", json!(1)),
        ("n_shared_experts", json!(1)),
        ("scoring_func", json!("sqrtsoftplus")),
        ("topk_method", json!("noaux_tc")),
        ("norm_topk_prob", json!(true)),
        ("hidden_act", json!("silu")),
        ("tie_word_embeddings", json!(false)),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("compress_rates", json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 128})),
    ];
    for (key, expected) in fixed {
        if let Some(found) = object.get(key).filter(|f| !f.is_null()) {
            ensure(*found == expected, key, || format!("must be {expected}, found {found}"))?;
        }
    }
    Ok(())
}

/// No dimension of a real model is larger; products of a few of them fit in 64 bits.
const MAX_DIM: u64 = 1 << 24;

struct Keys<'a> {
    object: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn read(&self) -> Result<ModelConfig, CheckpointError> {
        let num_hidden_layers = self.dim("num_hidden_layers")?;
        let (compress_ratios, extra) = self.compress_ratios(num_hidden_layers)?;
        Ok(ModelConfig {
            hidden_size: self.dim("hidden_size")?,
            num_hidden_layers,
            num_attention_heads: self.dim("num_attention_heads")?,
            head_dim: self.dim("head_dim")?,
            qk_rope_head_dim: self.dim("qk_rope_head_dim")?,
            q_lora_rank: self.dim("q_lora_rank")?,
            o_lora_rank: self.dim("o_lora_rank")?,
            o_groups: self.dim("o_groups")?,
            sliding_window: self.dim("sliding_window")?,
            compress_ratios,
            num_draft_layers: extra,
            rope_theta: self.theta("rope_theta", "main")?,
            compress_rope_theta: self.theta("compress_rope_theta", "compress")?,
            yarn: self.yarn()?,
            max_position_embeddings: self.dim("max_position_embeddings")?,
            index_n_heads: self.dim("index_n_heads")?,
            index_head_dim: self.dim("index_head_dim")?,
            index_topk: self.dim("index_topk")?,
            n_routed_experts: self.dim("n_routed_experts")?,
            num_experts_per_tok: self.dim("num_experts_per_tok")?,
            moe_intermediate_size: self.dim("moe_intermediate_size")?,
            routed_scaling_factor: self.positive("routed_scaling_factor")? as f32,
            swiglu_limit: self.number("swiglu_limit")? as f32,
            num_hash_layers: self.hash_layers()?,
            hc_mult: self.dim("hc_mult")?,
            hc_sinkhorn_iters: self.dim("hc_sinkhorn_iters")?,
            hc_eps: self.positive("hc_eps")? as f32,
            rms_norm_eps: self.positive("rms_norm_eps")? as f32,
            vocab_size: self.dim("vocab_size")?,
            bos_token_id: self.token("bos_token_id")?,
            eos_token_id: self.token("eos_token_id")?,
        })
    }

    fn get(&self, key: &str) -> Result<&Value, CheckpointError> {
        let value = self.object.get(key).filter(|v| !v.is_null());
        value.ok_or_else(|| error(key, "is missing".to_owned()))
    }

    fn dim(&self, key: &str) -> Result<usize, CheckpointError> {
        let value = self.get(key)?;
        let n = value.as_u64().filter(|n| (1..=MAX_DIM).contains(n));
        n.map(|n| n as usize)
            .ok_or_else(|| error(key, format!("must be an integer in 1..={MAX_DIM}, found {value}")))
    }

    fn number(&self, key: &str) -> Result<f64, CheckpointError> {
        let value = self.get(key)?;
        let n = value.as_f64().filter(|n| (0.0..=f64::from(f32::MAX)).contains(n));
        n.ok_or_else(|| error(key, format!("must be a number not below 0, found {value}")))
    }

    fn positive(&self, key: &str) -> Result<f64, CheckpointError> {
        let n = self.number(key)?;
        ensure(n as f32 > 0.0, key, || format!("must be above 0, found {n}")).map(|()| n)
    }

    fn token(&self, key: &str) -> Result<u32, CheckpointError> {
        let (value, vocab) = (self.get(key)?, self.dim("vocab_size")? as u64);
        let id = value.as_u64().filter(|id| *id < vocab);
        id.map(|id| id as u32)
            .ok_or_else(|| error(key, format!("must be a token id below {vocab}, found {value}")))
    }

    /// Ratios of the trunk's layers, and the number of further entries, which describe draft layers.
    fn compress_ratios(&self, layers: usize) -> Result<(Vec<usize>, usize), CheckpointError> {
        const KEY: &str = "compress_ratios";
        if self.object.contains_key("layer_types") && !self.object.contains_key(KEY) {
            return Ok((self.layer_types(layers)?, 0));
        }
        let value = self.get(KEY)?;
        let ratios: Vec<usize> = serde_json::from_value(value.clone())
            .map_err(|_| error(KEY, format!("must be a list of integers, found {value}")))?;
        ensure(ratios.len() >= layers, KEY, || {
            format!("must have at least num_hidden_layers ({layers}) entries, found {}", ratios.len())
        })?;
        let extra = ratios.len() - layers;
        Ok((ratios.into_iter().take(layers).collect(), extra))
    }

    /// The spelling of `transformers` for the same.
    fn layer_types(&self, layers: usize) -> Result<Vec<usize>, CheckpointError> {
        const KEY: &str = "layer_types";
        let ratio = |kind: &Value| match kind.as_str() {
            Some("sliding_attention") => Ok(0),
            Some("compressed_sparse_attention") => Ok(4),
            Some("heavily_compressed_attention") => Ok(128),
            _ => Err(error(KEY, format!("holds {kind}, expected one of three kinds of attention"))),
        };
        let kinds = self.list(KEY, layers)?;
        kinds.iter().map(ratio).collect()
    }

    fn hash_layers(&self) -> Result<usize, CheckpointError> {
        if let Some(value) = self.object.get("num_hash_layers") {
            let n = value.as_u64().filter(|n| *n <= MAX_DIM);
            return n.map(|n| n as usize).ok_or_else(|| {
                error("num_hash_layers", format!("must be an integer not below 0, found {value}"))
            });
        }
        const KEY: &str = "mlp_layer_types";
        if !self.object.contains_key(KEY) {
            return Err(error("num_hash_layers", "is missing".to_owned()));
        }
        let kinds = self.list(KEY, self.dim("num_hidden_layers")?)?;
        let hash = kinds.iter().take_while(|k| *k == "hash_moe").count();
        let rest_scored = kinds[hash..].iter().all(|k| k == "moe");
        ensure(rest_scored, KEY, || "must be hash_moe layers followed by moe layers".to_owned())
            .map(|()| hash)
    }

    fn list(&self, key: &str, len: usize) -> Result<&[Value], CheckpointError> {
        let value = self.get(key)?;
        let list = value.as_array().filter(|l| l.len() == len);
        list.map(Vec::as_slice)
            .ok_or_else(|| error(key, format!("must be a list of {len} entries, found {value}")))
    }

    /// A rope base, under its official key or in `rope_parameters`.
    fn theta(&self, key: &str, group: &str) -> Result<f64, CheckpointError> {
        let theta = match self.rope_parameters(group).and_then(|g| g.get("rope_theta")) {
            Some(value) if !self.object.contains_key(key) => {
                value.as_f64().ok_or_else(|| error(key, format!("must be a number, found {value}")))?
            }
            _ => self.number(key)?,
        };
        ensure(theta > 1.0, key, || format!("must be above 1, found {theta}")).map(|()| theta)
    }

    fn rope_parameters(&self, group: &str) -> Option<&Map<String, Value>> {
        self.object.get("rope_parameters")?.get(group)?.as_object()
    }

    fn yarn(&self) -> Result<Option<Yarn>, CheckpointError> {
        let (key, value) = match (self.object.get("rope_scaling"), self.rope_parameters("compress")) {
            (Some(Value::Null) | None, None) => return Ok(None),
            (Some(Value::Object(scaling)), _) => ("rope_scaling", scaling),
            (Some(Value::Null) | None, Some(group)) => ("rope_parameters.compress", group),
            (Some(other), _) => {
                return Err(error("rope_scaling", format!("must be an object, found {other}")));
            }
        };
        match value.get("type").or(value.get("rope_type")).and_then(Value::as_str) {
            Some("yarn") => yarn(key, value).map(Some),
            Some("default") => Ok(None),
            other => Err(error(key, format!("must be of type yarn, found {other:?}"))),
        }
    }
}

fn yarn(key: &str, value: &Map<String, Value>) -> Result<Yarn, CheckpointError> {
    let number = |name: &str| {
        let found = value.get(name).cloned().unwrap_or(Value::Null);
        let n = found.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        n.ok_or_else(|| error(&format!("{key}.{name}"), format!("must be a number above 0, found {found}")))
    };
    let original = number("original_max_position_embeddings")?;
    ensure(original >= 1.0 && original <= MAX_DIM as f64, key, || {
        format!("original_max_position_embeddings must be in 1..={MAX_DIM}, found {original}")
    })?;
    Ok(Yarn {
        factor: number("factor")?,
        original_max_position_embeddings: original as u32,
        beta_fast: number("beta_fast")?,
        beta_slow: number("beta_slow")?,
    })
}

fn error(key: &str, problem: String) -> CheckpointError {
    CheckpointError::Config { key: key.to_owned(), problem }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
