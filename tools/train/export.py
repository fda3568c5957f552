"""Checkpoint in the official names and dtypes (bf16 before quantisation), and the same weights under `transformers`' names."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from config import TOP, is_f32, layer_shapes
from model import Model

SHARD_BYTES = 14 << 20


def state(model: Model, rounded: bool = True) -> dict[str, Tensor]:
    """Official name -> tensor on the CPU; with `rounded`, in the stored dtype."""
    out = {}
    cast = lambda key, t: (t.detach().float() if is_f32(key) or not rounded else t.detach().bfloat16()).contiguous().cpu()
    for key, name in TOP.items():
        out[name] = cast(key, model.top[key])
    for i, layer in enumerate(model.layers):
        for key, (name, _) in layer_shapes(model.c, i).items():
            if "{e}" in name:
                out |= {f"layers.{i}.{name.format(e=e)}": cast(key, layer[key][e]) for e in range(model.c.experts)}
            else:
                out[f"layers.{i}.{name}"] = cast(key, layer[key])
        if i < model.c.hash_layers:
            out[f"layers.{i}.ffn.gate.tid2eid"] = model.expert_ids[i].long().contiguous().cpu()
        else:
            out[f"layers.{i}.ffn.gate.bias"] = cast("gate_bias", model.bias[i])
    return out


def save(model: Model, folder: Path) -> None:
    """Shards of at most 14 MiB, their index, and `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in state(model).items():
        size += tensor.nbytes
        if size > SHARD_BYTES:
            shards.append({})
            size = tensor.nbytes
        shards[-1][name] = tensor
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards):
        save_file(shard, folder / name, metadata={"format": "pt"})
    total = sum(t.nbytes for shard in shards for t in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": {key: name for name, shard in zip(names, shards) for key in shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / "config.json").write_text(json.dumps(model.c.config_json(), indent=1))


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def plain(name: str, tensors: dict[str, Tensor]) -> Tensor:
    """A stored tensor as numbers: FP8 in 128x128 blocks and NVFP4 are multiplied out."""
    w, block = tensors[name], name.removesuffix("weight") + "scale"
    if block in tensors:
        scale = tensors[block].float().repeat_interleave(128, 0).repeat_interleave(128, 1)
        return w.float() * scale[: w.shape[0], : w.shape[1]]
    if w.dtype == torch.uint8:
        values = torch.tensor(E2M1 + [-v for v in E2M1])
        codes = torch.stack([w & 15, w >> 4], -1).flatten(-2)
        scale = tensors[name + "_scale"].float().repeat_interleave(16, -1) * tensors[name + "_scale_2"].float()
        return values[codes.long()] * scale
    return w


@torch.no_grad()
def load(model: Model, folder: Path) -> None:
    """Reads what `save` or `flashlane quantize` wrote into `model`: training resumes from these weights."""
    stored: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        stored |= load_file(shard)
    tensors = {name: plain(name, stored) for name in stored}
    for key, name in TOP.items():
        model.top[key].copy_(tensors[name])
    for i, layer in enumerate(model.layers):
        for key, (name, _) in layer_shapes(model.c, i).items():
            stacked = [f"layers.{i}.{name.format(e=e)}" for e in range(model.c.experts)]
            layer[key].copy_(torch.stack([tensors[n] for n in stacked]) if "{e}" in name else tensors[f"layers.{i}.{name}"])
        if i < model.c.hash_layers:
            model.expert_ids[i].copy_(tensors[f"layers.{i}.ffn.gate.tid2eid"])
        else:
            model.bias[i].copy_(tensors[f"layers.{i}.ffn.gate.bias"])


HF_PREFIXES = [
    ("attn.indexer.compressor.wkv", "self_attn.compressor.indexer.kv_proj"), ("attn.indexer.compressor.wgate", "self_attn.compressor.indexer.gate_proj"),
    ("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"), ("attn.indexer.compressor.norm", "self_attn.compressor.indexer.kv_norm"),
    ("attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj"), ("attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj"),
    ("attn.compressor.wkv", "self_attn.compressor.kv_proj"), ("attn.compressor.wgate", "self_attn.compressor.gate_proj"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"), ("attn.compressor.norm", "self_attn.compressor.kv_norm"),
    ("attn.wq_a", "self_attn.q_a_proj"), ("attn.q_norm", "self_attn.q_a_norm"), ("attn.wq_b", "self_attn.q_b_proj"), ("attn.wkv", "self_attn.kv_proj"),
    ("attn.kv_norm", "self_attn.kv_norm"), ("attn.wo_a", "self_attn.o_a_proj"), ("attn.wo_b", "self_attn.o_b_proj"), ("attn.attn_sink", "self_attn.sinks"),
    ("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.gate.", "mlp.gate."), ("ffn.shared_experts.w1", "mlp.shared_experts.gate_proj"), ("ffn.shared_experts.w3", "mlp.shared_experts.up_proj"),
    ("ffn.shared_experts.w2", "mlp.shared_experts.down_proj"), ("hc_attn_", "attn_hc."), ("hc_ffn_", "ffn_hc."),
]
HF_TOP = {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight", "norm.weight": "model.norm.weight",
          "hc_head_fn": "model.hc_head.hc_fn", "hc_head_base": "model.hc_head.hc_base", "hc_head_scale": "model.hc_head.hc_scale"}


def hf_name(rest: str) -> str:
    for official, hf in HF_PREFIXES:
        if rest.startswith(official):
            return hf + rest[len(official) :]
    raise KeyError(f"no transformers name for {rest}")


def hf_state(official: dict[str, Tensor], layers: int, experts: int) -> dict[str, Tensor]:
    out = {}
    for name, tensor in official.items():
        if name in HF_TOP:
            out[HF_TOP[name]] = tensor
        elif ".experts." not in name:
            _, layer, rest = name.split(".", 2)
            out[f"model.layers.{layer}.{hf_name(rest)}"] = tensor
    for i in range(layers):
        stack = lambda w: torch.stack([official[f"layers.{i}.ffn.experts.{e}.{w}.weight"] for e in range(experts)])
        out[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.cat([stack("w1"), stack("w3")], 1)
        out[f"model.layers.{i}.mlp.experts.down_proj"] = stack("w2")
    return out
