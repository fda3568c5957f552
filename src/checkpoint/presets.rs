//! The published models' shapes, for what can be said about them without their weights: sizes, plans, proofs.

use super::ModelConfig;
use crate::format::rope::Yarn;

/// DeepSeek-V4-Flash.
#[must_use]
pub fn flash() -> ModelConfig {
    ModelConfig {
        hidden_size: 4096,
        num_hidden_layers: 43,
        num_attention_heads: 64,
        head_dim: 512,
        qk_rope_head_dim: 64,
        q_lora_rank: 1024,
        o_lora_rank: 1024,
        o_groups: 8,
        sliding_window: 128,
        compress_ratios: [vec![0, 0], [4, 128].repeat(20), vec![4]].concat(),
        num_draft_layers: 1,
        rope_theta: 1e4,
        compress_rope_theta: 1.6e5,
        yarn: Some(Yarn {
            factor: 16.0,
            original_max_position_embeddings: 65_536,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }),
        max_position_embeddings: 1 << 20,
        index_n_heads: 64,
        index_head_dim: 128,
        index_topk: 512,
        n_routed_experts: 256,
        num_experts_per_tok: 6,
        moe_intermediate_size: 2048,
        routed_scaling_factor: 1.5,
        swiglu_limit: 10.0,
        num_hash_layers: 3,
        hc_mult: 4,
        hc_sinkhorn_iters: 20,
        hc_eps: 1e-6,
        rms_norm_eps: 1e-6,
        vocab_size: 129_280,
        bos_token_id: 0,
        eos_token_id: 1,
    }
}

/// DeepSeek-V4-Pro.
#[must_use]
pub fn pro() -> ModelConfig {
    ModelConfig {
        hidden_size: 7168,
        num_hidden_layers: 61,
        num_attention_heads: 128,
        q_lora_rank: 1536,
        o_groups: 16,
        compress_ratios: [vec![128, 128], [4, 128].repeat(29), vec![4]].concat(),
        index_topk: 1024,
        n_routed_experts: 384,
        moe_intermediate_size: 3072,
        routed_scaling_factor: 2.5,
        ..flash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_shape_passes_the_checks_of_config_json_and_comes_back_the_same() {
        for config in [flash(), pro()] {
            let json = serde_json::to_vec(&config.to_json()).unwrap();
            let (read, _) = ModelConfig::from_json(&json).unwrap();
            assert_eq!(read, config);
        }
    }
}
