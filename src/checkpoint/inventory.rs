//! What tensors the architecture has: one walk that builds the weight tree, from whatever source hands out tensors.
//!
//! The loader, the list of expected tensors and the synthetic checkpoint all come from this walk, so they cannot disagree.

use super::config::{LayerKind, ModelConfig};
use super::map::Span;
use super::weights::{
    AttentionWeights, CompressorWeights, ExpertWeights, HyperWeights, IdTable, IndexerWeights, LayerWeights,
    Matrix, MoeWeights, Routing, Vector, WeightFormat, Weights,
};

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

/// Hands out tensors by their spec. Failures are the source's to remember; it returns something of the right type.
pub(super) trait Source {
    fn matrix(&mut self, spec: Spec) -> Matrix;
    fn vector(&mut self, spec: Spec) -> Vector;
    fn ids(&mut self, spec: Spec) -> IdTable;
}

/// Every tensor of a model, in checkpoint order.
#[must_use]
pub fn specs(config: &ModelConfig) -> Vec<Spec> {
    let mut recorder = Recorder(Vec::new());
    build(config, &mut recorder);
    recorder.0
}

/// The tree of weights.
pub(super) fn build(config: &ModelConfig, source: &mut dyn Source) -> Weights {
    let mut walk = Walk { config, source };
    let (d, v) = (config.hidden_size, config.vocab_size);
    Weights {
        embed: walk.matrix("embed.weight", [v, d], Role::Embed),
        head: walk.matrix("head.weight", [v, d], Role::Head),
        norm: walk.norm("norm", d),
        hc_head: walk.hyper("hc_head", config.hc_mult, 1, Role::HyperHeadBase),
        layers: (0..config.num_hidden_layers).map(|layer| walk.layer(layer)).collect(),
    }
}

struct Walk<'a> {
    config: &'a ModelConfig,
    source: &'a mut dyn Source,
}

impl Walk<'_> {
    fn matrix(&mut self, name: &str, shape: [usize; 2], role: Role) -> Matrix {
        self.source.matrix(Spec { name: name.to_owned(), shape: shape.to_vec(), role })
    }

    fn vector(&mut self, name: &str, shape: &[usize], role: Role) -> Vector {
        self.source.vector(Spec { name: name.to_owned(), shape: shape.to_vec(), role })
    }

    fn norm(&mut self, name: &str, width: usize) -> Vector {
        self.vector(&format!("{name}.weight"), &[width], Role::Norm)
    }

    fn hyper(&mut self, prefix: &str, mixes: usize, scales: usize, base: Role) -> HyperWeights {
        let width = self.config.hc_mult * self.config.hidden_size;
        HyperWeights {
            func: self.matrix(&format!("{prefix}_fn"), [mixes, width], Role::HyperFunc),
            base: self.vector(&format!("{prefix}_base"), &[mixes], base),
            scale: self.vector(&format!("{prefix}_scale"), &[scales], Role::HyperScale),
        }
    }

    fn layer(&mut self, layer: usize) -> LayerWeights {
        let (p, d, n) = (format!("layers.{layer}"), self.config.hidden_size, self.config.hc_mult);
        LayerWeights {
            attn_norm: self.norm(&format!("{p}.attn_norm"), d),
            ffn_norm: self.norm(&format!("{p}.ffn_norm"), d),
            hc_attn: self.hyper(&format!("{p}.hc_attn"), (2 + n) * n, 3, Role::HyperBase),
            hc_ffn: self.hyper(&format!("{p}.hc_ffn"), (2 + n) * n, 3, Role::HyperBase),
            attn: self.attention(&format!("{p}.attn"), self.config.kind(layer)),
            ffn: self.moe(&format!("{p}.ffn"), self.config.is_hash(layer)),
        }
    }

    fn attention(&mut self, p: &str, kind: LayerKind) -> AttentionWeights {
        let c = self.config;
        let (d, rq, hd, o) = (c.hidden_size, c.q_lora_rank, c.head_dim, c.o_groups * c.o_lora_rank);
        let q = c.num_attention_heads * hd;
        AttentionWeights {
            attn_sink: self.vector(&format!("{p}.attn_sink"), &[c.num_attention_heads], Role::Sink),
            wq_a: self.matrix(&format!("{p}.wq_a.weight"), [rq, d], Role::Attention),
            q_norm: self.norm(&format!("{p}.q_norm"), rq),
            wq_b: self.matrix(&format!("{p}.wq_b.weight"), [q, rq], Role::Attention),
            wkv: self.matrix(&format!("{p}.wkv.weight"), [hd, d], Role::Attention),
            kv_norm: self.norm(&format!("{p}.kv_norm"), hd),
            wo_a: self.matrix(&format!("{p}.wo_a.weight"), [o, q / c.o_groups], Role::Attention),
            wo_b: self.matrix(&format!("{p}.wo_b.weight"), [d, o], Role::Attention),
            compressor: match kind {
                LayerKind::Window => None,
                LayerKind::C4 => Some(self.compressor(&format!("{p}.compressor"), 4, 2, hd)),
                LayerKind::C128 => Some(self.compressor(&format!("{p}.compressor"), 128, 1, hd)),
            },
            indexer: (kind == LayerKind::C4).then(|| self.indexer(&format!("{p}.indexer"))),
        }
    }

    fn compressor(&mut self, p: &str, ratio: usize, series: usize, dims: usize) -> CompressorWeights {
        let (width, d) = (series * dims, self.config.hidden_size);
        CompressorWeights {
            wkv: self.matrix(&format!("{p}.wkv.weight"), [width, d], Role::Compressor),
            wgate: self.matrix(&format!("{p}.wgate.weight"), [width, d], Role::Compressor),
            ape: self.vector(&format!("{p}.ape"), &[ratio, width], Role::Ape),
            norm: self.norm(&format!("{p}.norm"), dims),
        }
    }

    fn indexer(&mut self, p: &str) -> IndexerWeights {
        let (heads, dims) = (self.config.index_n_heads, self.config.index_head_dim);
        let (d, rq) = (self.config.hidden_size, self.config.q_lora_rank);
        IndexerWeights {
            wq_b: self.matrix(&format!("{p}.wq_b.weight"), [heads * dims, rq], Role::Attention),
            weights_proj: self.matrix(&format!("{p}.weights_proj.weight"), [heads, d], Role::IndexWeights),
            compressor: self.compressor(&format!("{p}.compressor"), 4, 2, dims),
        }
    }

    fn moe(&mut self, p: &str, hash: bool) -> MoeWeights {
        let c = self.config;
        let experts = c.n_routed_experts;
        let gate = self.matrix(&format!("{p}.gate.weight"), [experts, c.hidden_size], Role::Router);
        let routing = if hash {
            let shape = vec![c.vocab_size, c.num_experts_per_tok];
            let spec = Spec { name: format!("{p}.gate.tid2eid"), shape, role: Role::HashIds };
            Routing::Hash(self.source.ids(spec))
        } else {
            Routing::Scored(self.vector(&format!("{p}.gate.bias"), &[experts], Role::RouterBias))
        };
        MoeWeights {
            gate,
            routing,
            shared: self.expert(&format!("{p}.shared_experts"), Role::SharedGateUp, Role::SharedDown),
            experts: (0..experts)
                .map(|e| self.expert(&format!("{p}.experts.{e}"), Role::ExpertGateUp, Role::ExpertDown))
                .collect(),
        }
    }

    fn expert(&mut self, p: &str, gate_up: Role, down: Role) -> ExpertWeights {
        let (d, width) = (self.config.hidden_size, self.config.moe_intermediate_size);
        ExpertWeights {
            w1: self.matrix(&format!("{p}.w1.weight"), [width, d], gate_up),
            w2: self.matrix(&format!("{p}.w2.weight"), [d, width], down),
            w3: self.matrix(&format!("{p}.w3.weight"), [width, d], gate_up),
        }
    }
}

/// Writes down what is asked for and hands out nothing.
struct Recorder(Vec<Spec>);

impl Source for Recorder {
    fn matrix(&mut self, spec: Spec) -> Matrix {
        let hollow = hollow_matrix(&spec);
        self.0.push(spec);
        hollow
    }

    fn vector(&mut self, spec: Spec) -> Vector {
        let hollow = hollow_vector(&spec);
        self.0.push(spec);
        hollow
    }

    fn ids(&mut self, spec: Spec) -> IdTable {
        let hollow = hollow_ids(&spec);
        self.0.push(spec);
        hollow
    }
}

/// A matrix without data; stands in where the walk goes on after a failure.
pub(super) fn hollow_matrix(spec: &Spec) -> Matrix {
    let (rows, cols) = (spec.shape[0], spec.shape[1]);
    Matrix { name: spec.name.as_str().into(), rows, cols, format: WeightFormat::Bf16, parts: Vec::new() }
}

pub(super) fn hollow_vector(spec: &Spec) -> Vector {
    Vector {
        name: spec.name.as_str().into(),
        shape: spec.shape.clone(),
        values: [].into(),
        format: WeightFormat::F32,
        data: Span::empty(),
    }
}

pub(super) fn hollow_ids(spec: &Spec) -> IdTable {
    IdTable { name: spec.name.as_str().into(), rows: spec.shape[0], cols: spec.shape[1], ids: [].into() }
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
