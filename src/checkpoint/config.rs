//! Placeholder until the checkpoint module lands.
use crate::format::rope::{RopeParams, Yarn};
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub q_lora_rank: usize,
    pub o_lora_rank: usize,
    pub o_groups: usize,
    pub compress_ratios: Vec<usize>,
    pub index_n_heads: usize,
    pub index_topk: usize,
    pub n_routed_experts: usize,
    pub num_experts_per_tok: usize,
    pub moe_intermediate_size: usize,
    pub routed_scaling_factor: f32,
    pub swiglu_limit: f32,
    pub num_hash_layers: usize,
    pub hc_mult: usize,
    pub hc_sinkhorn_iters: usize,
    pub hc_eps: f32,
    pub rms_norm_eps: f32,
    pub vocab_size: usize,
    pub rope_theta: f64,
    pub compress_rope_theta: f64,
    pub yarn: Option<Yarn>,
}
impl ModelConfig {
    #[must_use]
    pub fn rope(&self, ratio: usize) -> RopeParams {
        if ratio == 0 {
            RopeParams { theta: self.rope_theta, yarn: None }
        } else {
            RopeParams { theta: self.compress_rope_theta, yarn: self.yarn }
        }
    }
}
