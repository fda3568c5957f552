//! The tree of weights of one model, by the names of the official checkpoint.

use std::collections::HashMap;

use super::registry::{Registry, Source};
use crate::checkpoint::ModelConfig;
use crate::format::rope::RopeParams;
use crate::ops::{HEAD_DIM, INDEX_DIM, ROPE_DIM, StateLayout};
use crate::step::{CompressWeights, HyperWeights, NormWeights, Weight, WeightId};

#[derive(Clone, Debug, PartialEq)]
pub struct ModelWeights {
    pub embed: Weight,
    pub head: Weight,
    pub norm: NormWeights,
    pub hyper_head: HyperWeights,
    pub layers: Vec<LayerWeights>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LayerWeights {
    pub hyper_attention: HyperWeights,
    pub attention_norm: NormWeights,
    pub attention: AttentionWeights,
    pub hyper_moe: HyperWeights,
    pub moe_norm: NormWeights,
    pub moe: MoeWeights,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AttentionWeights {
    pub rope: Weight,
    pub wq_a: Weight,
    pub q_norm: NormWeights,
    pub wq_b: Weight,
    pub wkv: Weight,
    pub kv_norm: NormWeights,
    pub sink: Weight,
    pub wo_a: Weight,
    pub wo_b: Weight,
    pub groups: usize,
    pub eps: f32,
    /// `[wkv; wgate]` and the rest of the compressor, in layers of ratio 4 or 128.
    pub compressor: Option<(Weight, CompressWeights)>,
    /// In layers of ratio 4.
    pub indexer: Option<IndexerWeights>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct IndexerWeights {
    pub wq_b: Weight,
    pub weights: Weight,
    pub projection: Weight,
    pub compressor: CompressWeights,
    pub topk: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Routing {
    Scored { bias: Weight },
    Hash { table: Weight },
}

#[derive(Clone, Debug, PartialEq)]
pub struct MoeWeights {
    pub gate: Weight,
    pub routing: Routing,
    /// `[w1; w3]` of every expert.
    pub up: Weight,
    /// `w2` of every expert.
    pub down: Weight,
    pub shared_up: Weight,
    pub shared_down: Weight,
    pub chosen: usize,
    pub factor: f32,
    pub limit: f32,
}

impl ModelWeights {
    /// Registers every weight of `config`, with rotation tables for `max_positions` positions.
    #[must_use]
    pub fn new(config: &ModelConfig, max_positions: usize) -> (Self, Registry) {
        let mut registry = Registry::default();
        let mut r = Names { registry: &mut registry, config };
        let yarn = RopeParams { theta: config.compress_rope_theta, yarn: config.yarn };
        let plain = RopeParams { theta: config.rope_theta, yarn: None };
        let ropes = [r.rope("rope.plain", plain, max_positions), r.rope("rope.yarn", yarn, max_positions)];
        let embed = r.registry.bf16("embed.weight", config.vocab_size, config.hidden_size);
        let layers = (0..config.num_hidden_layers).map(|l| r.layer(l, &ropes)).collect();
        let hyper_head = r.hyper("hc_head", r.config.hc_mult, 1);
        let norm = r.norm("norm.weight", config.hidden_size);
        let head = r.registry.bf16("head.weight", config.vocab_size, config.hidden_size);
        (Self { embed, head, norm, hyper_head, layers }, registry)
    }

    /// How many matrices each stack of experts holds.
    #[must_use]
    pub fn stacks(&self) -> HashMap<WeightId, usize> {
        let of = |l: &LayerWeights| [l.moe.up.id, l.moe.down.id].map(|id| (id, l.moe.gate.rows));
        self.layers.iter().flat_map(of).collect()
    }
}

struct Names<'a> {
    registry: &'a mut Registry,
    config: &'a ModelConfig,
}

impl Names<'_> {
    fn rope(&mut self, name: &str, rope: RopeParams, positions: usize) -> Weight {
        let source = Source::Rope { rope, positions };
        self.registry.add(name, source, positions, ROPE_DIM, positions * ROPE_DIM * 4)
    }

    fn norm(&mut self, name: &str, width: usize) -> NormWeights {
        NormWeights { gain: self.registry.floats(name, 1, width), eps: self.config.rms_norm_eps }
    }

    fn hyper(&mut self, prefix: &str, mix_rows: usize, scales: usize) -> HyperWeights {
        let (streams, hidden) = (self.config.hc_mult, self.config.hidden_size);
        HyperWeights {
            mix: self.registry.floats(&format!("{prefix}_fn"), mix_rows, streams * hidden),
            base: self.registry.floats(&format!("{prefix}_base"), 1, mix_rows),
            scale: self.registry.floats(&format!("{prefix}_scale"), 1, scales),
            streams,
            sinkhorn_iters: self.config.hc_sinkhorn_iters,
            eps: self.config.rms_norm_eps,
            hc_eps: self.config.hc_eps,
        }
    }

    fn layer(&mut self, l: usize, ropes: &[Weight; 2]) -> LayerWeights {
        let (n, hidden) = (self.config.hc_mult, self.config.hidden_size);
        let p = format!("layers.{l}");
        LayerWeights {
            hyper_attention: self.hyper(&format!("{p}.hc_attn"), (2 + n) * n, 3),
            attention_norm: self.norm(&format!("{p}.attn_norm.weight"), hidden),
            attention: self.attention(&format!("{p}.attn"), l, ropes),
            hyper_moe: self.hyper(&format!("{p}.hc_ffn"), (2 + n) * n, 3),
            moe_norm: self.norm(&format!("{p}.ffn_norm.weight"), hidden),
            moe: self.moe(&format!("{p}.ffn"), l),
        }
    }

    fn attention(&mut self, p: &str, l: usize, ropes: &[Weight; 2]) -> AttentionWeights {
        let c = self.config;
        let ratio = c.compress_ratios[l];
        let rope = ropes[usize::from(ratio != 0)].clone();
        let inner = c.num_attention_heads * HEAD_DIM;
        AttentionWeights {
            wq_a: self.registry.fp8(&format!("{p}.wq_a.weight"), c.q_lora_rank, c.hidden_size),
            q_norm: self.norm(&format!("{p}.q_norm.weight"), c.q_lora_rank),
            wq_b: self.registry.fp8(&format!("{p}.wq_b.weight"), inner, c.q_lora_rank),
            wkv: self.registry.fp8(&format!("{p}.wkv.weight"), HEAD_DIM, c.hidden_size),
            kv_norm: self.norm(&format!("{p}.kv_norm.weight"), HEAD_DIM),
            sink: self.registry.floats(&format!("{p}.attn_sink"), 1, c.num_attention_heads),
            wo_a: self.registry.fp8(
                &format!("{p}.wo_a.weight"),
                c.o_groups * c.o_lora_rank,
                inner / c.o_groups,
            ),
            wo_b: self.registry.fp8(&format!("{p}.wo_b.weight"), c.hidden_size, c.o_groups * c.o_lora_rank),
            groups: c.o_groups,
            eps: c.rms_norm_eps,
            compressor: (ratio != 0)
                .then(|| self.compressor(&format!("{p}.compressor"), ratio, HEAD_DIM, &rope)),
            indexer: (ratio == 4).then(|| self.indexer(&format!("{p}.indexer"), &rope)),
            rope,
        }
    }

    fn compressor(
        &mut self,
        p: &str,
        ratio: usize,
        width: usize,
        rope: &Weight,
    ) -> (Weight, CompressWeights) {
        let layout = StateLayout { ratio, width };
        let (rows, hidden) = (layout.projection(), self.config.hidden_size);
        let parts = vec![format!("{p}.wkv.weight"), format!("{p}.wgate.weight")];
        let projection = self.registry.add(
            &format!("{p}.wkv_gate"),
            Source::Stack(parts),
            rows,
            hidden,
            rows * hidden * 2,
        );
        let ape = self.registry.floats(&format!("{p}.ape"), ratio, rows / 2);
        let norm = self.norm(&format!("{p}.norm.weight"), width);
        (projection, CompressWeights { ape, norm, rope: rope.clone(), layout })
    }

    fn indexer(&mut self, p: &str, rope: &Weight) -> IndexerWeights {
        let c = self.config;
        let (projection, compressor) = self.compressor(&format!("{p}.compressor"), 4, INDEX_DIM, rope);
        IndexerWeights {
            wq_b: self.registry.fp8(&format!("{p}.wq_b.weight"), c.index_n_heads * INDEX_DIM, c.q_lora_rank),
            weights: self.registry.bf16(&format!("{p}.weights_proj.weight"), c.index_n_heads, c.hidden_size),
            projection,
            compressor,
            topk: c.index_topk,
        }
    }

    fn moe(&mut self, p: &str, l: usize) -> MoeWeights {
        let c = self.config;
        let (experts, width, hidden) = (c.n_routed_experts, c.moe_intermediate_size, c.hidden_size);
        let routing = if l < c.num_hash_layers {
            let name = format!("{p}.gate.tid2eid");
            let (rows, cols) = (c.vocab_size, c.num_experts_per_tok);
            let table = self.registry.add(&name, Source::Table(name.clone()), rows, cols, rows * cols * 4);
            Routing::Hash { table }
        } else {
            Routing::Scored { bias: self.registry.floats(&format!("{p}.gate.bias"), 1, experts) }
        };
        let expert = |w: &str, e: usize| format!("{p}.experts.{e}.{w}.weight");
        let up = (0..experts).flat_map(|e| [expert("w1", e), expert("w3", e)]).collect();
        let down = (0..experts).map(|e| expert("w2", e)).collect();
        // 4-bit codes and a scale byte per 16.
        let fp4 = |rows: usize, cols: usize| rows * cols / 2 + rows * cols / 16;
        let shared = |w: &str| format!("{p}.shared_experts.{w}.weight");
        MoeWeights {
            gate: self.registry.bf16(&format!("{p}.gate.weight"), experts, hidden),
            routing,
            up: self.registry.add(
                &format!("{p}.experts.w13"),
                Source::Stack(up),
                experts * 2 * width,
                hidden,
                fp4(experts * 2 * width, hidden),
            ),
            down: self.registry.add(
                &format!("{p}.experts.w2"),
                Source::Stack(down),
                experts * hidden,
                width,
                fp4(experts * hidden, width),
            ),
            shared_up: self.registry.fp8_stack(
                &format!("{p}.shared_experts.w13"),
                &[shared("w1"), shared("w3")],
                2 * width,
                hidden,
            ),
            shared_down: self.registry.fp8(&shared("w2"), hidden, width),
            chosen: c.num_experts_per_tok,
            factor: c.routed_scaling_factor,
            limit: c.swiglu_limit,
        }
    }
}
