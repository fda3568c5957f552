"""Shape of the built-in model, its `config.json`, and the exact size of its shipped form."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Config:
    vocab: int = 1088
    hidden: int = 256
    ratios: tuple[int, ...] = (0, 0, 4, 128, 4)
    heads: int = 4
    q_lora: int = 128
    o_groups: int = 2
    o_lora: int = 128
    index_heads: int = 8
    top_k: int = 16
    experts: int = 6
    experts_per_token: int = 2
    expert_width: int = 128
    hash_layers: int = 1
    route_scale: float = 1.5
    swiglu_limit: float = 10.0
    max_position: int = 8192
    # Constants that the kernels are built for.
    head_dim: int = field(default=512, init=False)
    rope_dim: int = field(default=64, init=False)
    index_dim: int = field(default=128, init=False)
    window: int = field(default=128, init=False)
    streams: int = field(default=4, init=False)
    eps: float = field(default=1e-6, init=False)

    @property
    def layers(self) -> int:
        return len(self.ratios)

    def config_json(self) -> dict:
        return {
            "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": self.vocab, "hidden_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": 1, "head_dim": self.head_dim,
            "qk_rope_head_dim": self.rope_dim, "q_lora_rank": self.q_lora, "o_lora_rank": self.o_lora, "o_groups": self.o_groups,
            "sliding_window": self.window, "compress_ratios": [*self.ratios, 0], "rope_theta": 10000, "compress_rope_theta": 160000,
            "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1},
            "max_position_embeddings": self.max_position, "index_n_heads": self.index_heads, "index_head_dim": self.index_dim,
            "index_topk": self.top_k, "n_routed_experts": self.experts, "n_shared_experts": 1, "num_experts_per_tok": self.experts_per_token,
            "moe_intermediate_size": self.expert_width, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
            "routed_scaling_factor": self.route_scale, "swiglu_limit": self.swiglu_limit, "num_hash_layers": self.hash_layers,
            "hc_mult": self.streams, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": self.eps, "num_nextn_predict_layers": 0,
            "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0,
            "hidden_act": "silu", "torch_dtype": "bfloat16",
        }


def layer_shapes(c: Config, layer: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Short key -> (official name inside the layer, shape). Experts are stacked under one key, `{e}` in their name."""
    d, rows, ratio = c.head_dim, c.streams * (2 + c.streams), c.ratios[layer]
    shapes = {
        "attn_norm": ("attn_norm.weight", (c.hidden,)), "ffn_norm": ("ffn_norm.weight", (c.hidden,)),
        "attn_sink": ("attn.attn_sink", (c.heads,)),
        "wq_a": ("attn.wq_a.weight", (c.q_lora, c.hidden)), "q_norm": ("attn.q_norm.weight", (c.q_lora,)),
        "wq_b": ("attn.wq_b.weight", (c.heads * d, c.q_lora)),
        "wkv": ("attn.wkv.weight", (d, c.hidden)), "kv_norm": ("attn.kv_norm.weight", (d,)),
        "wo_a": ("attn.wo_a.weight", (c.o_groups * c.o_lora, c.heads * d // c.o_groups)),
        "wo_b": ("attn.wo_b.weight", (c.hidden, c.o_groups * c.o_lora)),
        "gate": ("ffn.gate.weight", (c.experts, c.hidden)),
        "w1": ("ffn.experts.{e}.w1.weight", (c.experts, c.expert_width, c.hidden)),
        "w3": ("ffn.experts.{e}.w3.weight", (c.experts, c.expert_width, c.hidden)),
        "w2": ("ffn.experts.{e}.w2.weight", (c.experts, c.hidden, c.expert_width)),
        "s1": ("ffn.shared_experts.w1.weight", (c.expert_width, c.hidden)),
        "s3": ("ffn.shared_experts.w3.weight", (c.expert_width, c.hidden)),
        "s2": ("ffn.shared_experts.w2.weight", (c.hidden, c.expert_width)),
    }
    for part in ("attn", "ffn"):
        shapes |= {f"hc_{part}_fn": (f"hc_{part}_fn", (rows, c.streams * c.hidden)), f"hc_{part}_base": (f"hc_{part}_base", (rows,)),
                   f"hc_{part}_scale": (f"hc_{part}_scale", (3,))}
    if ratio:
        shapes |= compressor_shapes("c", "attn.compressor", ratio, d, c.hidden)
    if ratio == 4:
        shapes |= {"i_wq_b": ("attn.indexer.wq_b.weight", (c.index_heads * c.index_dim, c.q_lora)),
                   "i_proj": ("attn.indexer.weights_proj.weight", (c.index_heads, c.hidden))}
        shapes |= compressor_shapes("ic", "attn.indexer.compressor", 4, c.index_dim, c.hidden)
    return shapes


def compressor_shapes(key: str, name: str, ratio: int, dim: int, hidden: int) -> dict:
    wide = dim * (2 if ratio == 4 else 1)
    return {f"{key}_wkv": (f"{name}.wkv.weight", (wide, hidden)), f"{key}_wgate": (f"{name}.wgate.weight", (wide, hidden)),
            f"{key}_ape": (f"{name}.ape", (ratio, wide)), f"{key}_norm": (f"{name}.norm.weight", (dim,))}


TOP = {"embed": "embed.weight", "head": "head.weight", "norm": "norm.weight", "hc_head_fn": "hc_head_fn", "hc_head_base": "hc_head_base",
       "hc_head_scale": "hc_head_scale"}


def top_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    n = c.streams
    return {"embed": (c.vocab, c.hidden), "head": (c.vocab, c.hidden), "norm": (c.hidden,), "hc_head_fn": (n, n * c.hidden),
            "hc_head_base": (n,), "hc_head_scale": (1,)}


FP8 = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b", "i_wq_b", "s1", "s2", "s3"}
FP4 = {"w1", "w2", "w3"}


def is_f32(key: str) -> bool:
    return key.startswith("hc_") or key.endswith("ape") or key in ("attn_sink", "gate_bias")


def shipped_bytes(c: Config) -> int:
    """Tensor bytes in the shipped form: NVFP4 routed experts, FP8 128x128 dense, the rest as in the official checkpoint."""
    total = sum(math.prod(shape) * (4 if is_f32(key) else 2) for key, shape in top_shapes(c).items())
    for layer in range(c.layers):
        total += c.vocab * c.experts_per_token * 8 if layer < c.hash_layers else 4 * c.experts
        total += sum(tensor_bytes(key, shape) for key, (_, shape) in layer_shapes(c, layer).items())
    return total


def tensor_bytes(key: str, shape: tuple[int, ...]) -> int:
    count = math.prod(shape)
    if key in FP4:
        return count // 2 + count // 16 + 8 * shape[0]
    if key in FP8:
        return count + math.ceil(shape[0] / 128) * math.ceil(shape[1] / 128)
    return count * (4 if is_f32(key) else 2)


if __name__ == "__main__":
    config = Config()
    params = sum(math.prod(s) for s in top_shapes(config).values())
    params += sum(math.prod(s) for layer in range(config.layers) for _, s in layer_shapes(config, layer).values())
    print(f"{params / 1e6:.2f} M parameters, {shipped_bytes(config) / 1e6:.3f} MB shipped")
