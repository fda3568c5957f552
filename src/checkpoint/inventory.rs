//! What tensors the architecture has: names, shapes and roles, for any configuration.
//!
//! The loader, the quantiser and the synthetic checkpoint all read this one list, so they cannot disagree.

use super::config::{LayerKind, ModelConfig};

/// What a tensor is for. Decides its official storage, how `quantize` treats it, and its synthetic distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Embed,
    Head,
    Norm,
    HyperFunc,
    /// `[pre n, post n, comb n n]`.
    HyperBase,
    HyperHeadBase,
    HyperScale,
    Sink,
    Ape,
    /// Attention projections: FP8 in the official checkpoint.
    Attention,
    /// Compressor projections: never quantised.
    Compressor,
    /// The indexer's head weights: never quantised.
    IndexWeights,
    Router,
    RouterBias,
    HashIds,
    SharedGateUp,
    SharedDown,
    ExpertGateUp,
    ExpertDown,
}

impl Role {
    /// A linear that the official checkpoint stores as FP8 blocks.
    #[must_use]
    pub const fn is_dense(self) -> bool {
        matches!(self, Self::Attention | Self::SharedGateUp | Self::SharedDown)
    }

    /// A projection of a routed expert, FP4 in the official checkpoints.
    #[must_use]
    pub const fn is_expert(self) -> bool {
        matches!(self, Self::ExpertGateUp | Self::ExpertDown)
    }

    /// A small parameter, decoded to f32 when it is loaded.
    #[must_use]
    pub const fn is_vector(self) -> bool {
        matches!(
            self,
            Self::Norm
                | Self::HyperBase
                | Self::HyperHeadBase
                | Self::HyperScale
                | Self::Sink
                | Self::Ape
                | Self::RouterBias
        )
    }

    /// Stored as f32 in the official checkpoint.
    #[must_use]
    pub const fn is_f32(self) -> bool {
        matches!(
            self,
            Self::HyperFunc
                | Self::HyperBase
                | Self::HyperHeadBase
                | Self::HyperScale
                | Self::Sink
                | Self::Ape
                | Self::RouterBias
        )
    }
}

/// One tensor of the architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Official name.
    pub name: String,
    /// `[rows, cols]` for matrices, whatever the packing.
    pub shape: Vec<usize>,
    pub role: Role,
}

/// Every tensor of a model, in checkpoint order.
#[must_use]
pub fn specs(config: &ModelConfig) -> Vec<Spec> {
    let mut list = List { config, specs: Vec::new() };
    let (d, v, n) = (config.hidden_size, config.vocab_size, config.hc_mult);
    list.add("embed.weight", &[v, d], Role::Embed);
    list.add("head.weight", &[v, d], Role::Head);
    list.norm("norm", d);
    list.hyper("hc_head", n, 1, Role::HyperHeadBase);
    for layer in 0..config.num_hidden_layers {
        list.layer(layer);
    }
    list.specs
}

struct List<'a> {
    config: &'a ModelConfig,
    specs: Vec<Spec>,
}

impl List<'_> {
    fn add(&mut self, name: &str, shape: &[usize], role: Role) {
        self.specs.push(Spec { name: name.to_owned(), shape: shape.to_vec(), role });
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.add(&format!("{name}.weight"), &[width], Role::Norm);
    }

    fn hyper(&mut self, prefix: &str, mixes: usize, scales: usize, base: Role) {
        let width = self.config.hc_mult * self.config.hidden_size;
        self.add(&format!("{prefix}_fn"), &[mixes, width], Role::HyperFunc);
        self.add(&format!("{prefix}_base"), &[mixes], base);
        self.add(&format!("{prefix}_scale"), &[scales], Role::HyperScale);
    }

    fn layer(&mut self, layer: usize) {
        let (p, d, n) = (format!("layers.{layer}"), self.config.hidden_size, self.config.hc_mult);
        self.norm(&format!("{p}.attn_norm"), d);
        self.norm(&format!("{p}.ffn_norm"), d);
        self.hyper(&format!("{p}.hc_attn"), (2 + n) * n, 3, Role::HyperBase);
        self.hyper(&format!("{p}.hc_ffn"), (2 + n) * n, 3, Role::HyperBase);
        self.attention(&format!("{p}.attn"), self.config.kind(layer));
        self.moe(&format!("{p}.ffn"), self.config.is_hash(layer));
    }

    fn attention(&mut self, p: &str, kind: LayerKind) {
        let c = self.config;
        let (d, rq, hd, o) = (c.hidden_size, c.q_lora_rank, c.head_dim, c.o_groups * c.o_lora_rank);
        let q = c.num_attention_heads * hd;
        self.add(&format!("{p}.attn_sink"), &[c.num_attention_heads], Role::Sink);
        self.add(&format!("{p}.wq_a.weight"), &[rq, d], Role::Attention);
        self.norm(&format!("{p}.q_norm"), rq);
        self.add(&format!("{p}.wq_b.weight"), &[q, rq], Role::Attention);
        self.add(&format!("{p}.wkv.weight"), &[hd, d], Role::Attention);
        self.norm(&format!("{p}.kv_norm"), hd);
        // Block-diagonal, stacked by group.
        self.add(&format!("{p}.wo_a.weight"), &[o, q / c.o_groups], Role::Attention);
        self.add(&format!("{p}.wo_b.weight"), &[d, o], Role::Attention);
        match kind {
            LayerKind::Window => {}
            LayerKind::C128 => self.compressor(&format!("{p}.compressor"), 128, hd),
            LayerKind::C4 => {
                self.compressor(&format!("{p}.compressor"), 4, hd);
                self.indexer(&format!("{p}.indexer"));
            }
        }
    }

    /// Ratio 4 has two overlapping series.
    fn compressor(&mut self, p: &str, ratio: usize, dims: usize) {
        let (width, d) = (if ratio == 4 { 2 * dims } else { dims }, self.config.hidden_size);
        self.add(&format!("{p}.wkv.weight"), &[width, d], Role::Compressor);
        self.add(&format!("{p}.wgate.weight"), &[width, d], Role::Compressor);
        self.add(&format!("{p}.ape"), &[ratio, width], Role::Ape);
        self.norm(&format!("{p}.norm"), dims);
    }

    fn indexer(&mut self, p: &str) {
        let (heads, dims) = (self.config.index_n_heads, self.config.index_head_dim);
        self.add(&format!("{p}.wq_b.weight"), &[heads * dims, self.config.q_lora_rank], Role::Attention);
        self.add(&format!("{p}.weights_proj.weight"), &[heads, self.config.hidden_size], Role::IndexWeights);
        self.compressor(&format!("{p}.compressor"), 4, dims);
    }

    fn moe(&mut self, p: &str, hash: bool) {
        let c = self.config;
        self.add(&format!("{p}.gate.weight"), &[c.n_routed_experts, c.hidden_size], Role::Router);
        if hash {
            self.add(&format!("{p}.gate.tid2eid"), &[c.vocab_size, c.num_experts_per_tok], Role::HashIds);
        } else {
            self.add(&format!("{p}.gate.bias"), &[c.n_routed_experts], Role::RouterBias);
        }
        self.expert(&format!("{p}.shared_experts"), Role::SharedGateUp, Role::SharedDown);
        for e in 0..c.n_routed_experts {
            self.expert(&format!("{p}.experts.{e}"), Role::ExpertGateUp, Role::ExpertDown);
        }
    }

    /// `w1` gate, `w3` up, `w2` down.
    fn expert(&mut self, p: &str, gate_up: Role, down: Role) {
        let (d, width) = (self.config.hidden_size, self.config.moe_intermediate_size);
        self.add(&format!("{p}.w1.weight"), &[width, d], gate_up);
        self.add(&format!("{p}.w2.weight"), &[d, width], down);
        self.add(&format!("{p}.w3.weight"), &[width, d], gate_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::rope::Yarn;

    /// DeepSeek-V4-Flash itself.
    fn flash() -> ModelConfig {
        let mut ratios = vec![0, 0];
        ratios.extend((0..20).flat_map(|_| [4, 128]));
        ratios.push(4);
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
            compress_ratios: ratios,
            num_draft_layers: 1,
            rope_theta: 10_000.0,
            compress_rope_theta: 160_000.0,
            yarn: Some(Yarn {
                factor: 16.0,
                original_max_position_embeddings: 65536,
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

    /// 284.33 B parameters without the draft layer, as published.
    #[test]
    fn the_inventory_of_flash_has_its_published_size() {
        let specs = specs(&flash());
        let elements = |s: &Spec| s.shape.iter().product::<usize>();
        let trunk: usize = specs.iter().filter(|s| s.role != Role::HashIds).map(elements).sum();
        let shape = |name: &str| specs.iter().find(|s| s.name == name).unwrap().shape.clone();
        assert!((284.33e9..284.34e9).contains(&(trunk as f64)), "{trunk}");
        assert_eq!(shape("layers.2.attn.compressor.ape"), [4, 1024]);
        assert_eq!(shape("layers.3.attn.compressor.wkv.weight"), [512, 4096]);
        assert_eq!(shape("layers.2.attn.indexer.wq_b.weight"), [8192, 1024]);
        assert_eq!(shape("layers.42.attn.wo_a.weight"), [8192, 4096]);
        assert_eq!(shape("hc_head_fn"), [4, 16384]);
        assert_eq!(shape("layers.2.ffn.gate.tid2eid"), [129_280, 6]);
        assert!(
            !specs
                .iter()
                .any(|s| s.name == "layers.3.ffn.gate.tid2eid" || s.name == "layers.2.ffn.gate.bias")
        );
    }

    #[test]
    fn names_are_distinct() {
        let specs = specs(&flash());
        let names: std::collections::HashSet<_> = specs.iter().map(|s| &s.name).collect();
        assert_eq!(names.len(), specs.len());
    }
}
