//! Reading `config.json`, key by key.

use serde_json::{Map, Value, json};

use super::{ModelConfig, ensure};
use crate::checkpoint::CheckpointError;
use crate::format::rope::Yarn;

/// No dimension of a real model is larger; products of a few of them fit in 64 bits.
const MAX_DIM: u64 = 1 << 24;

pub(super) struct Keys<'a> {
    pub(super) object: &'a Map<String, Value>,
}

impl Keys<'_> {
    pub(super) fn read(&self) -> Result<ModelConfig, CheckpointError> {
        let num_hidden_layers = self.dim("num_hidden_layers")?;
        let (compress_ratios, extra) = self.compress_ratios(num_hidden_layers)?;
        let extra = self.draft_layers()?.map_or(extra, |draft| draft.min(extra));
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
        n.ok_or_else(|| error(key, format!("must be a number in 0..={:e}, found {value}", f32::MAX)))
    }

    fn positive(&self, key: &str) -> Result<f64, CheckpointError> {
        let n = self.number(key)?;
        ensure(n as f32 > 0.0, key, || format!("must be above 0 as an f32, found {n:e}")).map(|()| n)
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

    /// If the file says how many there are, further layers in its tensors are none of them.
    fn draft_layers(&self) -> Result<Option<usize>, CheckpointError> {
        let value = self.object.get("num_nextn_predict_layers").filter(|value| !value.is_null());
        value.map(|value| count("num_nextn_predict_layers", value)).transpose()
    }

    fn hash_layers(&self) -> Result<usize, CheckpointError> {
        if let Some(value) = self.object.get("num_hash_layers") {
            return count("num_hash_layers", value);
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

fn count(key: &str, value: &Value) -> Result<usize, CheckpointError> {
    let n = value.as_u64().filter(|n| *n <= MAX_DIM);
    n.map(|n| n as usize)
        .ok_or_else(|| error(key, format!("must be an integer in 0..={MAX_DIM}, found {value}")))
}

fn error(key: &str, problem: String) -> CheckpointError {
    CheckpointError::Config { key: key.to_owned(), problem }
}

/// Refuses other models by name.
pub(super) fn check_architecture(object: &Map<String, Value>) -> Result<(), CheckpointError> {
    let text = |key: &str, of: fn(&Value) -> Option<&Value>, expected: &str| {
        let Some(found) = object.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let text = of(found).and_then(Value::as_str).map(str::to_owned);
        text.map(Some).ok_or_else(|| error(key, format!("must be {expected}, found {found}")))
    };
    let model_type = text("model_type", |found| Some(found), "a string")?;
    let class = text("architectures", |found| found.get(0), "a list of strings")?;
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
pub(super) fn check_fixed(object: &Map<String, Value>) -> Result<(), CheckpointError> {
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
