"""The oracle: `transformers`' DeepseekV4ForCausalLM in eager f32, loaded from official tensor names.

Loading goes through `from_pretrained`, so the mapping from official names to modules is transformers' own.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import DeepseekV4ForCausalLM

import layout


def write_checkpoint(path, seed, config=layout.CONFIG):
    """A checkpoint directory in the official names, bf16 where the official layout is bf16 or narrower."""
    path = pathlib.Path(path)
    narrow = layout.is_bf16(config)
    tensors = {}
    for name, array in layout.weights(seed, config).items():
        tensor = torch.from_numpy(array)
        tensors[name] = tensor.to(torch.bfloat16) if name in narrow else tensor
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config, indent=2))


def load(seed, config=layout.CONFIG):
    """The model in f32; every tensor must have found its place and every parameter its tensor."""
    with tempfile.TemporaryDirectory() as path:
        write_checkpoint(path, seed, config)
        model, info = DeepseekV4ForCausalLM.from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    problems = {k: v for k, v in info.items() if v}
    if problems:
        raise RuntimeError(f"transformers did not load the checkpoint cleanly: {problems}")
    check_loaded(model, seed, config)
    return model.eval()


def check_loaded(model, seed, config):
    """Places where a silent default would bend the oracle (see README.md, "The oracle, checked")."""
    expected_types = [
        {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}[r]
        for r in config["compress_ratios"][: config["num_hidden_layers"]]
    ]
    assert model.config.layer_types == expected_types, model.config.layer_types
    hashed = [t == "hash_moe" for t in model.config.mlp_layer_types]
    assert hashed == [i < config["num_hash_layers"] for i in range(len(hashed))], model.config.mlp_layer_types
    rotary = model.model.rotary_emb
    for kind, table in (("main", rope_frequencies(config, False)), ("compress", rope_frequencies(config, True))):
        got = getattr(rotary, f"{kind}_inv_freq").double().numpy()
        assert np.allclose(got, table, rtol=3e-6, atol=0), f"{kind} rope frequencies differ: {got} {table}"
        assert getattr(rotary, f"{kind}_attention_scaling") == 1.0
    moe = model.model.layers[-1].mlp
    assert moe.shared_experts.limit == moe.experts.limit == config["swiglu_limit"], "the shared expert is not clamped"
    raw = layout.weights(seed, config)
    gate_up = moe.experts.gate_up_proj[5].detach().numpy()
    name = f"layers.{config['num_hidden_layers'] - 1}.ffn.experts.5"
    assert np.array_equal(gate_up, np.concatenate([raw[f"{name}.w1.weight"], raw[f"{name}.w3.weight"]]))


def rope_frequencies(config, yarn):
    """Inverse frequencies in f64: plain, or YaRN on the compressed base without magnitude scaling."""
    rd = config["qk_rope_head_dim"]
    i = np.arange(rd // 2)
    if not yarn:
        return config["rope_theta"] ** (-2.0 * i / rd)
    base, s = config["compress_rope_theta"], config["rope_scaling"]
    freq = base ** (-2.0 * i / rd)
    turn = lambda r: rd * np.log(s["original_max_position_embeddings"] / (2 * np.pi * r)) / (2 * np.log(base))
    low, high = max(np.floor(turn(s["beta_fast"])), 0), min(np.ceil(turn(s["beta_slow"])), rd - 1)
    keep = 1 - np.clip((i - low) / max(high - low, 1e-3), 0, 1)
    return freq * keep + freq / s["factor"] * (1 - keep)


class Taps:
    """Forward hooks that keep what the fixture records: streams, sublayer outputs, choices and their scores."""

    def __init__(self, model):
        self.model, self.data, self.handles = model, {}, []
        for i, layer in enumerate(model.model.layers):
            self._keep(layer, f"layers.{i}.streams", lambda out: out[0])
            self._keep(layer.self_attn, f"layers.{i}.attn", lambda out: out[0][0])
            self._keep(layer.mlp, f"layers.{i}.ffn", lambda out: out[0])
            self._keep(layer.mlp.gate, f"layers.{i}.gate", lambda out: out)
            indexer = getattr(layer.self_attn.compressor, "indexer", None)
            if indexer is not None:
                self._keep(indexer, f"layers.{i}.rows", lambda out: out[0])
                self._keep(indexer.scorer, f"layers.{i}.index_scores", lambda out: out[0])

    def _keep(self, module, name, pick):
        def hook(_module, _args, output):
            value = pick(output)
            self.data[name] = tuple(v.numpy() for v in value) if isinstance(value, tuple) else value.numpy()

        self.handles.append(module.register_forward_hook(hook))

    def run(self, ids):
        """Logits [S, V] of one sequence without a cache; the taps are then in `data`."""
        with torch.no_grad():
            return self.model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()


def gaps(taps, config, num_tokens):
    """Per layer and token, how far the choice is from flipping, relative to the largest magnitude scored there.

    For index rows the k-th against the (k+1)-th visible score, over the
    largest visible |score|; for experts the same over score plus bias. Infinite where nothing is dropped.
    """
    out = {}
    for i in range(config["num_hidden_layers"]):
        if i >= config["num_hash_layers"]:
            logits = taps.data[f"layers.{i}.gate"][0].astype(np.float64)
            bias = taps.model.model.layers[i].mlp.gate.e_score_correction_bias.double().numpy()
            out[f"layers.{i}.experts"] = relative_gap(
                np.sqrt(np.logaddexp(0, logits)) + bias, config["num_experts_per_tok"]
            )
        if config["compress_ratios"][i] == 4:
            scores = taps.data[f"layers.{i}.index_scores"].astype(np.float64)
            visible = (np.arange(num_tokens) + 1) // 4
            hidden = np.arange(scores.shape[1])[None] >= visible[:, None]
            out[f"layers.{i}.rows"] = relative_gap(np.where(hidden, -np.inf, scores), config["index_topk"])
    return out


def relative_gap(scores, k):
    """(k-th largest - (k+1)-th largest) / largest finite magnitude, per row; inf if fewer than k+1 are finite."""
    if scores.shape[1] <= k:
        return np.full(len(scores), np.inf)
    ordered = -np.sort(-scores, axis=1)
    scale = np.max(np.abs(np.where(np.isfinite(scores), scores, 0.0)), axis=1)
    with np.errstate(invalid="ignore"):
        gap = (ordered[:, k - 1] - ordered[:, k]) / scale
    return np.where(np.isfinite(ordered[:, k]), gap, np.inf)
