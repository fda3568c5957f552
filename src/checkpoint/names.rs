//! Tensor names: the official spelling of every alias, and which tensors belong to parts that are not served.
//!
//! Aliases come from the reference converter, from `transformers` (its module names, and what its `save_pretrained` makes of
//! them, which is neither) and from quantised re-exports. A name that is no alias passes through unchanged and is judged
//! later, against the inventory.

use super::ModelConfig;

/// A part of the model that is not served, whose tensors are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// `mtp.*` and layers past `num_hidden_layers`.
    Draft,
    Vision,
    /// Scales of quantised activations; activations stay in bf16 here.
    ActivationScale,
}

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Draft => "the draft layers (multi-token prediction)",
            Self::Vision => "the vision tower",
            Self::ActivationScale => "static activation scales",
        })
    }
}

const VISION: [&str; 8] = [
    "vision",
    "visual",
    "vision_tower",
    "vision_model",
    "vit",
    "projector",
    "multi_modal_projector",
    "aligner",
];

/// What a tensor is, judged by its name alone.
pub(super) fn skip(official: &str, config: &ModelConfig) -> Option<Skip> {
    let mut segments = official.split('.');
    let first = segments.next().unwrap_or_default();
    if first == "mtp" || (first == "layers" && is_draft_layer(segments.next(), config)) {
        return Some(Skip::Draft);
    }
    if VISION.contains(&first) || first.starts_with("image_") {
        return Some(Skip::Vision);
    }
    let last = official.rsplit('.').next().unwrap_or_default();
    matches!(last, "input_scale" | "input_global_scale").then_some(Skip::ActivationScale)
}

/// Draft layers may be numbered on from the trunk, one for each extra entry of `compress_ratios`.
fn is_draft_layer(index: Option<&str>, config: &ModelConfig) -> bool {
    let trunk = config.num_hidden_layers;
    let index = index.and_then(|l| l.parse::<usize>().ok());
    index.is_some_and(|l| (trunk..trunk + config.num_draft_layers).contains(&l))
}

/// The official name of a tensor.
pub(super) fn official(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let segments: Vec<&str> = name.split('.').collect();
    let renamed = match segments.as_slice() {
        ["embed_tokens", rest @ ..] => join(&["embed"], rest),
        ["lm_head", rest @ ..] => join(&["head"], rest),
        ["hc_head", leaf] if leaf.starts_with("hc_") => format!("hc_head_{}", &leaf[3..]),
        ["layers", layer, rest @ ..] => format!("layers.{layer}.{}", block(rest)),
        _ => name.to_owned(),
    };
    leaf(renamed)
}

/// Names inside one layer.
fn block(path: &[&str]) -> String {
    match path {
        ["self_attn" | "attn", rest @ ..] => format!("attn.{}", attention(rest)),
        ["mlp" | "ffn", rest @ ..] => format!("ffn.{}", feed_forward(rest)),
        ["input_layernorm", rest @ ..] => join(&["attn_norm"], rest),
        ["post_attention_layernorm", rest @ ..] => join(&["ffn_norm"], rest),
        ["attn_hc", leaf] => format!("hc_attn_{leaf}"),
        ["ffn_hc", leaf] => format!("hc_ffn_{leaf}"),
        _ => path.join("."),
    }
}

fn attention(path: &[&str]) -> String {
    match path {
        ["q_a_proj", rest @ ..] => join(&["wq_a"], rest),
        ["q_a_norm" | "q_a_layernorm", rest @ ..] => join(&["q_norm"], rest),
        ["q_b_proj", rest @ ..] => join(&["wq_b"], rest),
        ["kv_proj", rest @ ..] => join(&["wkv"], rest),
        // `save_pretrained` undoes its renaming of the compressor's norm here too.
        ["norm", rest @ ..] => join(&["kv_norm"], rest),
        ["o_a_proj", rest @ ..] => join(&["wo_a"], rest),
        ["o_b_proj", rest @ ..] => join(&["wo_b"], rest),
        ["sinks"] => "attn_sink".to_owned(),
        ["compressor", "indexer", rest @ ..] | ["indexer", rest @ ..] => format!("indexer.{}", indexer(rest)),
        ["compressor", rest @ ..] => format!("compressor.{}", compressor(rest)),
        _ => path.join("."),
    }
}

fn indexer(path: &[&str]) -> String {
    match path {
        ["q_b_proj", rest @ ..] => join(&["wq_b"], rest),
        ["scorer", rest @ ..] => rest.join("."),
        ["compressor", rest @ ..] | rest @ ["kv_proj" | "gate_proj" | "position_bias" | "kv_norm", ..] => {
            format!("compressor.{}", compressor(rest))
        }
        _ => path.join("."),
    }
}

fn compressor(path: &[&str]) -> String {
    match path {
        ["kv_proj", rest @ ..] => join(&["wkv"], rest),
        ["gate_proj", rest @ ..] => join(&["wgate"], rest),
        ["kv_norm", rest @ ..] => join(&["norm"], rest),
        ["position_bias"] => "ape".to_owned(),
        _ => path.join("."),
    }
}

fn feed_forward(path: &[&str]) -> String {
    match path {
        ["gate", "e_score_correction_bias"] => "gate.bias".to_owned(),
        ["shared_experts", rest @ ..] => format!("shared_experts.{}", expert(rest)),
        // Fused tensors of all experts keep their names.
        ["experts", "gate_up_proj" | "down_proj", ..] => path.join("."),
        ["experts", index, rest @ ..] => format!("experts.{index}.{}", expert(rest)),
        _ => path.join("."),
    }
}

fn expert(path: &[&str]) -> String {
    match path {
        ["gate_proj", rest @ ..] => join(&["w1"], rest),
        ["up_proj", rest @ ..] => join(&["w3"], rest),
        ["down_proj", rest @ ..] => join(&["w2"], rest),
        _ => path.join("."),
    }
}

/// Aliases of the last segment.
fn leaf(name: String) -> String {
    const LEAVES: [(&str, &str); 2] = [(".weight_scale_inv", ".scale"), (".weight_packed", ".weight")];
    for (alias, official) in LEAVES {
        if let Some(stem) = name.strip_suffix(alias) {
            return format!("{stem}{official}");
        }
    }
    name
}

fn join(head: &[&str], tail: &[&str]) -> String {
    [head, tail].concat().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::synthetic;

    #[test]
    fn aliases_become_official_names() {
        let cases = [
            ("lm_head.weight", "head.weight"),
            ("model.embed_tokens.weight", "embed.weight"),
            ("model.norm.weight", "norm.weight"),
            ("model.hc_head.hc_fn", "hc_head_fn"),
            ("model.layers.3.input_layernorm.weight", "layers.3.attn_norm.weight"),
            ("model.layers.3.post_attention_layernorm.weight", "layers.3.ffn_norm.weight"),
            ("model.layers.3.attn_hc.base", "layers.3.hc_attn_base"),
            ("model.layers.3.attn.norm.weight", "layers.3.attn.kv_norm.weight"),
            ("model.layers.3.self_attn.q_a_norm.weight", "layers.3.attn.q_norm.weight"),
            ("model.layers.3.self_attn.kv_proj.weight_scale_inv", "layers.3.attn.wkv.scale"),
            ("model.layers.3.self_attn.sinks", "layers.3.attn.attn_sink"),
            ("model.layers.3.self_attn.compressor.kv_norm.weight", "layers.3.attn.compressor.norm.weight"),
            ("model.layers.3.self_attn.compressor.position_bias", "layers.3.attn.compressor.ape"),
            (
                "model.layers.3.self_attn.compressor.indexer.q_b_proj.weight",
                "layers.3.attn.indexer.wq_b.weight",
            ),
            (
                "model.layers.3.self_attn.compressor.indexer.scorer.weights_proj.weight",
                "layers.3.attn.indexer.weights_proj.weight",
            ),
            (
                "model.layers.3.self_attn.compressor.indexer.gate_proj.weight",
                "layers.3.attn.indexer.compressor.wgate.weight",
            ),
            ("layers.3.attn.indexer.compressor.ape", "layers.3.attn.indexer.compressor.ape"),
            ("model.layers.3.mlp.gate.e_score_correction_bias", "layers.3.ffn.gate.bias"),
            ("model.layers.3.mlp.shared_experts.up_proj.weight", "layers.3.ffn.shared_experts.w3.weight"),
            ("model.layers.3.mlp.experts.7.down_proj.weight_packed", "layers.3.ffn.experts.7.w2.weight"),
            ("model.layers.3.mlp.experts.gate_up_proj", "layers.3.ffn.experts.gate_up_proj"),
            ("something.else", "something.else"),
        ];
        for (alias, expected) in cases {
            assert_eq!(official(alias), expected);
        }
    }

    #[test]
    fn official_names_are_their_own_spelling() {
        for spec in crate::checkpoint::specs(&synthetic::tiny_config()) {
            assert_eq!(official(&spec.name), spec.name);
            assert_eq!(skip(&spec.name, &synthetic::tiny_config()), None);
        }
    }

    #[test]
    fn draft_vision_and_activation_scales_are_passed_over() {
        let config = synthetic::tiny_config();
        let trunk = config.num_hidden_layers;
        assert_eq!(skip("mtp.0.e_proj.weight", &config), Some(Skip::Draft));
        assert_eq!(skip(&format!("layers.{trunk}.attn.wkv.weight"), &config), Some(Skip::Draft));
        assert_eq!(skip(&format!("layers.{}.attn.wkv.weight", trunk + 1), &config), None);
        assert_eq!(skip("vision.blocks.0.weight", &config), Some(Skip::Vision));
        assert_eq!(skip("layers.0.ffn.experts.0.w1.input_scale", &config), Some(Skip::ActivationScale));
    }
}
