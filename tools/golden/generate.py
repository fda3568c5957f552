"""Writes proptests/golden/{tiny_a.safetensors, tiny_a.json, generator.json}. See README.md.

Usage: python tools/golden/generate.py [--out DIR]
"""

import argparse
import json
import pathlib
import platform
import re

import numpy as np
import safetensors
import torch
import transformers
from safetensors.numpy import save_file

import counter
import layout
import oracle
import reference

SEED = 1
MIN_GAP = 5e-4
PROMPTS = {"long": ("prompt", 641), "short": ("prompt.short", 97)}
TAP_POSITIONS = {
    3: "completes the first ratio-4 row",
    127: "completes the first ratio-128 row; the window is exactly full",
    130: "the window has slid; two tokens past a ratio-4 boundary",
    259: "65 ratio-4 rows are visible: the first top-k that drops one",
    511: "completes the fourth ratio-128 row",
    640: "last token, one past a boundary of both ratios",
}
NO_ROW = 255
ATTEMPT_STRIDE = 65536


def settle_prompt(taps, name, length, config):
    """A prompt in which no choice at any layer and token is within MIN_GAP of flipping.

    Token i starts as draw i. The model is causal, so the first token with a near tie is redrawn (index
    i + 65536 * attempt) without touching anything before it, until none is left.
    """
    vocab = config["vocab_size"]
    attempts = np.zeros(length, dtype=np.int64)
    while True:
        ids = counter.tokens(SEED, name, np.arange(length) + ATTEMPT_STRIDE * attempts, vocab)
        logits = taps.run(ids)
        gaps = oracle.gaps(taps, config, length)
        near = np.flatnonzero(np.min(list(gaps.values()), axis=0) < MIN_GAP)
        if len(near) == 0:
            return ids, logits, gaps, attempts
        attempts[near[0]] += 1


def row_lists(top_k_indices, width):
    """Selected compressed rows per token, ascending, padded with NO_ROW."""
    rows = np.where(top_k_indices < 0, NO_ROW, top_k_indices)
    rows = np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=NO_ROW)
    assert rows.max() <= NO_ROW
    return np.sort(rows, axis=1).astype(np.uint8)


def choices(taps, config):
    """The discrete decisions of one run: experts of every layer, rows of every ratio-4 layer."""
    out = {}
    for i in range(config["num_hidden_layers"]):
        out[f"layers.{i}.experts"] = np.sort(taps.data[f"layers.{i}.gate"][2], axis=1).astype(np.uint8)
        if config["compress_ratios"][i] == 4:
            out[f"layers.{i}.rows"] = row_lists(taps.data[f"layers.{i}.rows"], config["index_topk"])
    return out


def relative_error(got, want):
    """Largest difference in a row over the row's largest magnitude; one number per row."""
    axes = tuple(range(1, want.ndim))
    return np.abs(got - want).max(axis=axes) / np.abs(want).max(axis=axes)


def compare(ids, logits, taps, chosen, weights, config):
    """The recorded f32 run against the independent f64 pass: same choices, and how far the numbers are."""
    ref = reference.Reference(weights, config)
    want = ref.forward(ids)
    for name, got in chosen.items():
        expected = ref.tap[name]
        if name.endswith(".rows"):
            lists = np.full_like(got, NO_ROW)
            for t, mask in enumerate(expected):
                lists[t, : mask.sum()] = np.flatnonzero(mask)
            expected = lists
        if not np.array_equal(got, expected):
            raise RuntimeError(f"{name}: transformers and the f64 reference choose differently")
    error = relative_error(logits, want)
    kinds = ("attn", "ffn", "streams")
    worst = {k: max(relative_error(taps.data[n], ref.tap[n]).max() for n in ref.tap if n.endswith(k)) for k in kinds}
    return {"logits_max": error.max(), "logits_median": np.median(error), **{f"{k}_max": v for k, v in worst.items()}}


def record(tensors, prefix, ids, logits, chosen):
    tensors[f"{prefix}.ids"] = ids.astype(np.int32)
    tensors[f"{prefix}.logits"] = logits
    for name, array in chosen.items():
        tensors[f"{prefix}.{name}"] = array


def tap_tensors(taps, config):
    where = list(TAP_POSITIONS)
    out = {"long.positions": np.array(where, dtype=np.int32)}
    for i in range(config["num_hidden_layers"]):
        for kind in ("attn", "ffn", "streams"):
            out[f"long.layers.{i}.{kind}"] = np.ascontiguousarray(taps.data[f"layers.{i}.{kind}"][where])
    return out


def generator_fixture(seeds=(SEED, 0, 2**63 + 12345)):
    """Pinned generator values for the Rust twin: first, middle and last element of one tensor of each kind."""
    config = layout.CONFIG
    kinds = {}
    for spec in layout.specs(config):
        kinds[re.sub(r"\d+", "N", spec.name), spec.shape] = spec
    entries = []
    for spec in kinds.values():
        for seed in seeds if spec.name == "embed.weight" else seeds[:1]:
            flat = counter.values(seed, spec.name, spec.shape, spec.mean, spec.std, spec.bf16).ravel()
            for index in sorted({0, flat.size // 2, flat.size - 1}):
                z = int(counter.bits(seed, spec.name, index))
                entries.append(
                    {
                        "name": spec.name,
                        "shape": list(spec.shape),
                        "dtype": "BF16" if spec.bf16 else "F32",
                        "seed": str(seed),
                        "index": index,
                        "z": f"{z:016x}",
                        "value": float(flat[index]),
                    }
                )
    ids = "layers.1.ffn.gate.tid2eid"
    table = layout.weights(SEED, config)[ids]
    rows = [{"name": ids, "seed": str(SEED), "row": t, "ids": table[t].tolist()} for t in (0, 1, 77, len(table) - 1)]
    draws = [
        {"name": name, "seed": str(SEED), "index": i, "token": int(counter.tokens(SEED, name, i, config["vocab_size"]))}
        for name, _ in PROMPTS.values()
        for i in (0, 1, 96, ATTEMPT_STRIDE + 1)
    ]
    return {"values": entries, "tid2eid": rows, "tokens": draws}


def write_lines(path, fixture):
    """JSON with one entry a line, so that differences read well."""
    lists = (f' "{key}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]" for key, rows in fixture.items())
    path.write_text("{\n" + ",\n".join(lists) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "proptests" / "golden")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / "generator.json", generator_fixture())

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = layout.CONFIG
    weights = layout.weights(SEED)
    taps = oracle.Taps(oracle.load(SEED))
    tensors, about = {}, {}
    for prefix, (name, length) in PROMPTS.items():
        ids, logits, gaps, attempts = settle_prompt(taps, name, length, config)
        chosen = choices(taps, config)
        error = compare(ids, logits, taps, chosen, weights, config)
        record(tensors, prefix, ids, logits, chosen)
        if prefix == "long":
            tensors |= tap_tensors(taps, config)
        about[prefix] = {
            "name": name,
            "length": length,
            "redrawn": {str(i): int(a) for i, a in enumerate(attempts) if a},
            "min_gap": {k: float(v.min()) for k, v in gaps.items() if np.isfinite(v.min())},
            "oracle_error_against_f64": {k: float(v) for k, v in error.items()},
        }
        print(prefix, json.dumps(about[prefix]["min_gap"]), json.dumps(about[prefix]["oracle_error_against_f64"]))
    save_file(tensors, out / "tiny_a.safetensors")
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "safetensors": safetensors.__version__,
    }
    summary = {
        "seed": SEED,
        "config": config,
        "min_gap_required": MIN_GAP,
        "min_gap_relative_to": "the largest magnitude among that token's visible index scores, or among its "
        "sqrt(softplus) scores plus bias",
        "prompts": about,
        "tap_positions": {str(k): v for k, v in TAP_POSITIONS.items()},
        "no_row": NO_ROW,
        "versions": versions,
    }
    (out / "tiny_a.json").write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
