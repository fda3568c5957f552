"""Shows that the fixture can fail: plausible mistakes in the f64 reference, and how far each moves the logits.

Usage: python tools/golden/sensitivity.py
"""

import pathlib

import numpy as np
from safetensors.numpy import load_file

import generate
import layout
import reference

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "proptests" / "golden" / "tiny_a.safetensors"


class Mistaken(reference.Reference):
    """The reference with one of its steps bent, chosen by name."""

    def __init__(self, weights, config, mistake):
        super().__init__(weights, config)
        self.mistake = mistake

    def frequencies(self, ratio):
        if self.mistake == "no YaRN" and ratio:
            return self.c["compress_rope_theta"] ** (-2.0 * np.arange(32) / 64)
        return super().frequencies(4 if self.mistake == "YaRN in every layer" else ratio)

    def rope(self, x, positions, ratio, direction=1.0):
        if self.mistake == "output not rotated back" and direction < 0:
            return x
        return super().rope(x, positions, ratio, direction)

    def hyper_mix(self, prefix, x):
        pre, post, comb = super().hyper_mix(prefix, x)
        return pre, post, comb.transpose(0, 2, 1) if self.mistake == "comb transposed" else comb

    def compress(self, prefix, x, ratio):
        row = super().compress(prefix, x, ratio)
        if self.mistake == "row rotated at its last token":
            return self.rope(row, np.full(len(row), ratio - 1.0), ratio)
        return row

    def expert(self, prefix, x, weight=None):
        if self.mistake == "shared expert not clamped" and weight is None:
            g, u = self.linear(f"{prefix}.w1", x), self.linear(f"{prefix}.w3", x)
            return self.linear(f"{prefix}.w2", g * reference.sigmoid(g) * u)
        return super().expert(prefix, x, weight)


def bent_weights(weights, mistake):
    """Mistakes that amount to other weights or another config value."""
    config = dict(layout.CONFIG)
    if mistake == "attention sinks ignored":
        weights = {k: np.full_like(v, -1e9) if k.endswith("attn_sink") else v for k, v in weights.items()}
    if mistake == "position bias ignored":
        weights = {k: np.zeros_like(v) if k.endswith("ape") else v for k, v in weights.items()}
    if mistake == "routing bias ignored":
        weights = {k: np.zeros_like(v) if k.endswith("gate.bias") else v for k, v in weights.items()}
    if mistake == "overlap series swapped":
        swap = lambda v: np.roll(v, v.shape[-1] // 2, axis=-1) if v.shape[0] == 4 else np.roll(v, len(v) // 2, axis=0)
        is_csa = lambda k: (
            "compressor" in k
            and not k.endswith("norm.weight")
            and layout.CONFIG["compress_ratios"][int(k.split(".")[1])] == 4
        )
        weights = {k: swap(v) if is_csa(k) else v for k, v in weights.items()}
    if mistake == "top-k one smaller":
        config["index_topk"] -= 1
    if mistake == "window one shorter":
        config["sliding_window"] -= 1
    if mistake == "one Sinkhorn iteration fewer":
        config["hc_sinkhorn_iters"] -= 1
    return weights, config


MISTAKES = [
    "none",
    "no YaRN",
    "YaRN in every layer",
    "output not rotated back",
    "row rotated at its last token",
    "comb transposed",
    "one Sinkhorn iteration fewer",
    "window one shorter",
    "top-k one smaller",
    "overlap series swapped",
    "position bias ignored",
    "attention sinks ignored",
    "routing bias ignored",
    "shared expert not clamped",
]


def main():
    golden = load_file(GOLDEN)
    ids, want = golden["long.ids"], golden["long.logits"]
    base = layout.weights(generate.SEED)
    for mistake in MISTAKES:
        weights, config = bent_weights(base, mistake)
        error = generate.relative_error(Mistaken(weights, config, mistake).forward(ids), want)
        print(
            f"{mistake:32s} max {error.max():.1e}  median {np.median(error):.1e}  positions over 1e-4: {(error > 1e-4).sum()}"
        )


if __name__ == "__main__":
    main()
