"""Tiny-A: a DeepSeek-V4 shape small enough for every test run, and its tensors in the official names.

The kernel-baked constants (head 512, rope 64, index head 128, window 128, four streams, ratios 4 and 128)
are those of DeepSeek-V4-Flash; everything else is shrunk.
"""

import math
from dataclasses import dataclass

import numpy as np

import counter

CONFIG = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 256,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 128,
    "o_lora_rank": 128,
    "o_groups": 2,
    "sliding_window": 128,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0],
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 1048576,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 128,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 2.0,
    "num_hash_layers": 2,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "num_nextn_predict_layers": 0,
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Spec:
    """One tensor: its distribution, and whether the official layout keeps it below f32."""

    name: str
    shape: tuple
    std: float | np.ndarray
    mean: float | np.ndarray = 0.0
    bf16: bool = True


def matrix(name, rows, cols, gain=1.0):
    return Spec(f"{name}.weight", (rows, cols), gain / math.sqrt(cols))


def norm(name, width):
    return Spec(f"{name}.weight", (width,), 0.1, mean=1.0)


def f32(name, shape, std, mean=0.0):
    return Spec(name, shape, std, mean, bf16=False)


def compressor(prefix, c, ratio, head_dim):
    """The gated pooling of `ratio` tokens into one row; two series when the windows overlap."""
    width = head_dim * (2 if ratio == 4 else 1)
    return [
        matrix(f"{prefix}.wkv", width, c["hidden_size"]),
        matrix(f"{prefix}.wgate", width, c["hidden_size"]),
        f32(f"{prefix}.ape", (ratio, width), 1.0),
        norm(f"{prefix}.norm", head_dim),
    ]


def attention(prefix, c, ratio):
    d, rq, h, hd = c["hidden_size"], c["q_lora_rank"], c["num_attention_heads"], c["head_dim"]
    groups, ro = c["o_groups"], c["o_lora_rank"]
    specs = [
        f32(f"{prefix}.attn_sink", (h,), 1.0),
        matrix(f"{prefix}.wq_a", rq, d),
        norm(f"{prefix}.q_norm", rq),
        matrix(f"{prefix}.wq_b", h * hd, rq),
        matrix(f"{prefix}.wkv", hd, d),
        norm(f"{prefix}.kv_norm", hd),
        matrix(f"{prefix}.wo_a", groups * ro, h * hd // groups),
        matrix(f"{prefix}.wo_b", d, groups * ro),
    ]
    if ratio:
        specs += compressor(f"{prefix}.compressor", c, ratio, hd)
    if ratio == 4:
        hi, di = c["index_n_heads"], c["index_head_dim"]
        specs += [
            matrix(f"{prefix}.indexer.wq_b", hi * di, rq),
            matrix(f"{prefix}.indexer.weights_proj", hi, d),
            *compressor(f"{prefix}.indexer.compressor", c, ratio, di),
        ]
    return specs


def expert(prefix, c):
    """w1 and w3 are scaled up so that the clamp acts on a share of the activations."""
    d, i = c["hidden_size"], c["moe_intermediate_size"]
    return [
        matrix(f"{prefix}.w1", i, d, gain=2.0),
        matrix(f"{prefix}.w2", d, i),
        matrix(f"{prefix}.w3", i, d, gain=2.0),
    ]


def feed_forward(prefix, c, hashed):
    e = c["n_routed_experts"]
    specs = [matrix(f"{prefix}.gate", e, c["hidden_size"])]
    if not hashed:
        specs.append(f32(f"{prefix}.gate.bias", (e,), 0.1))
    for i in range(e):
        specs += expert(f"{prefix}.experts.{i}", c)
    return specs + expert(f"{prefix}.shared_experts", c)


def hyper_connection(prefix, c):
    """The comb block leans to its diagonal but is not symmetric, so a transposed comb shows."""
    n, d = c["hc_mult"], c["hidden_size"]
    mean = np.concatenate([np.full(n, -1.1), np.zeros(n), 2.0 * np.eye(n).ravel()])
    std = np.concatenate([np.full(2 * n, 0.5), np.ones(n * n)])
    return [
        f32(f"{prefix}_fn", ((2 + n) * n, n * d), 1 / math.sqrt(n * d)),
        f32(f"{prefix}_base", ((2 + n) * n,), std, mean),
        f32(f"{prefix}_scale", (3,), 0.1, mean=0.8),
    ]


def specs(c=CONFIG):
    """Every float tensor of the checkpoint, in the official names."""
    n, d, v = c["hc_mult"], c["hidden_size"], c["vocab_size"]
    out = [
        Spec("embed.weight", (v, d), 0.7),
        matrix("head", v, d),
        norm("norm", d),
        f32("hc_head_fn", (n, n * d), 1 / math.sqrt(n * d)),
        f32("hc_head_base", (n,), 0.3, mean=-1.1),
        f32("hc_head_scale", (1,), 0.1, mean=0.8),
    ]
    for layer in range(c["num_hidden_layers"]):
        p = f"layers.{layer}"
        out += [norm(f"{p}.attn_norm", d), norm(f"{p}.ffn_norm", d)]
        out += hyper_connection(f"{p}.hc_attn", c) + hyper_connection(f"{p}.hc_ffn", c)
        out += attention(f"{p}.attn", c, c["compress_ratios"][layer])
        out += feed_forward(f"{p}.ffn", c, layer < c["num_hash_layers"])
    return out


def weights(seed, c=CONFIG):
    """Name -> array: f32 holding the exact (bf16-rounded where the layout says so) value, or i64 ids."""
    out = {s.name: counter.values(seed, s.name, s.shape, s.mean, s.std, s.bf16) for s in specs(c)}
    for layer in range(c["num_hash_layers"]):
        name = f"layers.{layer}.ffn.gate.tid2eid"
        out[name] = counter.distinct_ids(seed, name, c["vocab_size"], c["num_experts_per_tok"], c["n_routed_experts"])
    return out


def is_bf16(c=CONFIG):
    """Names that the official layout stores in bf16 or a narrower format."""
    return {s.name for s in specs(c) if s.bf16}
