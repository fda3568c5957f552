"""Held-out accuracy per task, knock-outs per layer, and roundings.

Every reply is scored with its own correct text as context: all tokens of the reply must be the arg max. Greedy decoding gives the
same reply exactly if this holds for each of its tokens, so the share is the success of greedy decoding.
"""

import torch

import data
from model import Model, Tables, logits
from rounding import shipped

KINDS = ["walk", "needle", "recall", "trail", "unknown", "choice", "none", "chat", "echo", "topic", "rule"]
SEED = 900_001  # training uses seeds below 100,000


class Suite:
    """Items of every kind at one context length, made once."""

    def __init__(self, binary: str, ctx: int, count: int, rounds: int = 3, thinking: bool = False, kinds: list[str] = KINDS):
        self.name = f"{ctx}{'-think' if thinking else ''}"
        make = lambda kind: data.items(binary, kind, count, ctx, SEED + ctx, rounds, thinking)
        self.items = [item for kind in kinds for item in make(kind)]


class Bar:
    """Items of one kind at several lengths and rounds: what the shipped model must meet, in full counts."""

    def __init__(self, name: str, binary: str, kind: str, shapes: list[tuple[int, int]], count: int):
        self.name = name
        self.items = [item for ctx, rounds in shapes for item in data.items(binary, kind, count, ctx, SEED + 50_000 + ctx, rounds)]


def bars(binary: str, count: int):
    """Sessions of 2 to 4 and of 5 to 8 rounds, needles at 128 lengths, and tool choice; in full with a count of 200."""
    yield Bar("bar walk", binary, "walk", [(400, 2), (700, 3), (1100, 4), (1500, 4)], count * 5 // 2)
    yield Bar("bar long walk", binary, "walk", [(1600, 5), (2800, 6), (4000, 8)], count // 2)
    yield Bar("bar choice", binary, "choice", [(300, 1), (700, 1), (1500, 1)], count * 2)
    yield Bar("bar needle", binary, "needle", [(length, 1) for length in range(600, 728)], max(1, count // 20))


class Evaluator:
    def __init__(self, model: Model, dtype: torch.dtype):
        self.model, self.dtype, self.tables = model, dtype, {}
        self.eager = Model.__new__(Model)
        self.eager.__dict__.update(model.__dict__)
        self.eager.functions = Model(model.c, "cpu").functions

    @torch.no_grad()
    def correct(self, items: list[data.Item], dense=False, rounded=False, knocks=None, layers=None) -> list[list[bool]]:
        """For each item, whether each token (from the second on) is the arg max."""
        ids = torch.from_numpy(data.padded(items)).to(self.model.device)
        batch, length = ids.shape[0], ids.shape[1] - 1
        if (batch, length) not in self.tables:
            self.tables[batch, length] = Tables(batch, length, self.model.device)
        flag = lambda value: torch.tensor(value, device=self.model.device)
        x = self.eager.forward(ids[:, :-1], self.tables[batch, length], flag(dense), flag(float(rounded)), self.dtype, layers, knocks)[0]
        best = logits(x, self.model.top, self.model.c).argmax(-1).view(batch, length)
        return (best == ids[:, 1:]).tolist()

    def score(self, suite: Suite | Bar, tokens: int = 65_536, **how) -> dict[str, list[int]]:
        """Right and total: whole items by kind, and answers beyond the window by kind (`far.*`)."""
        table: dict[str, list[int]] = {}
        pending = sorted(suite.items, key=lambda item: len(item.ids))
        while pending:
            count = max(1, tokens // (len(pending[0].ids) + 512))
            batch, pending = pending[:count], pending[count:]
            for item, right in zip(batch, self.correct(batch, **how)):
                add = lambda key, ok: table.setdefault(key, [0, 0]).__setitem__(slice(None), [table[key][0] + ok, table[key][1] + 1])
                whole = all(all(right[start - 1 : end - 1]) for start, end in item.replies)
                add(item.kind, whole)
                if suite.name == "bar needle" and not whole:
                    add(f"length.{item.replies[0][0]}", False)
                for start, end, kind, distance in item.spans:
                    if distance > 128:
                        add(f"far.{kind}", all(right[start - 1 : end - 1]))
        return table


def line(table: dict[str, list[int]]) -> str:
    return " ".join(f"{key} {right}/{total}" + ("" if right == total else f"={right / total:.4f}") for key, (right, total) in sorted(table.items()))


def knock_outs(model: Model) -> dict[str, dict]:
    c4 = [i for i, ratio in enumerate(model.c.ratios) if ratio == 4]
    c128 = [i for i, ratio in enumerate(model.c.ratios) if ratio == 128]
    ways = {"all rows": {"dense": True}}
    ways |= {f"random index in layer {i}": {"knocks": {i: "random"}} for i in c4}
    ways |= {f"C4 rows off in layer {i}": {"knocks": {i: "off"}} for i in c4}
    ways["random index"] = {"knocks": dict.fromkeys(c4, "random")}
    ways["C4 rows off"] = {"knocks": dict.fromkeys(c4, "off")}
    ways["C128 rows off"] = {"knocks": dict.fromkeys(c128, "off")}
    return ways


def roundings(model: Model) -> dict[str, dict]:
    c4 = [i for i, ratio in enumerate(model.c.ratios) if ratio == 4]
    with torch.no_grad():
        layers = [{key: shipped(key, w) for key, w in layer.items()} for layer in model.layers]
    return {
        "FP8 KV": {"rounded": True},
        "FP8 index": {"knocks": dict.fromkeys(c4, "fp8")},
        "FP4 index": {"knocks": dict.fromkeys(c4, "fp4")},
        "FP8 and NVFP4 weights": {"layers": layers},
        "FP8 and NVFP4 weights, FP8 KV, FP4 index": {"layers": layers, "rounded": True, "knocks": dict.fromkeys(c4, "fp4")},
    }
