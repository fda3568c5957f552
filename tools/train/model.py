"""DeepSeek-V4 in plain functions, dense enough to train and to check: no caches, static shapes, all experts computed.

Tokens of all sequences lie flat, N = batch * length, so that every function but the compressed attentions has one shape for all
lengths. Sections refer to the model specification. Parameters are dictionaries with the short keys of `config.layer_shapes`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from config import Config, layer_shapes, top_shapes
from rounding import index_row, kv_row
from sinkhorn import sinkhorn

MASKED = -1e30
Layer = dict[str, Tensor]


def linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype))


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide if weight is None else wide * weight).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates interleaved pairs of the last 64 dimensions."""
    plain, pairs = x[..., :-64], x[..., -64:].float()
    a, b = pairs[..., 0::2], pairs[..., 1::2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([plain, turned.to(x.dtype)], -1)


def frequencies(compressed: bool) -> Tensor:
    """Angles per position (2.3): plain for sliding layers, YaRN for the others."""
    i = torch.arange(32, dtype=torch.float64)
    if not compressed:
        return 10000.0 ** (-i / 32)
    plain = 160000.0 ** (-i / 32)
    turn = lambda rotations: 64 * math.log(65536 / (2 * math.pi * rotations)) / (2 * math.log(160000))
    low, high = math.floor(turn(32)), math.ceil(turn(1))
    keep = 1 - ((i - low) / (high - low)).clamp(0, 1)
    return plain * keep + plain / 16 * (1 - keep)


class Tables:
    """Everything that depends on the batch shape alone."""

    def __init__(self, batch: int, length: int, device: str | torch.device):
        self.batch, self.length = batch, length
        angle = lambda compressed: torch.arange(length, dtype=torch.float64)[:, None] * frequencies(compressed)
        tile = lambda t: t.float().repeat(batch, 1).to(device)
        self.cos = [tile(angle(kind).cos()) for kind in (False, True)]
        self.sin = [tile(angle(kind).sin()) for kind in (False, True)]
        block = torch.arange(batch * length // 128, device=device)
        row, column = torch.arange(128, device=device)[:, None], torch.arange(256, device=device) - 128
        inside = (column <= row) & (row - column < 128)
        starts = (block % (length // 128) == 0)[:, None, None]
        self.window = (inside & ~(starts & (column < 0)))[:, :, None]  # [N/128, 128, 1, 256]


def mix_in(x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """mHC before a sublayer (2.2): its input [N, D], the write gate [N, 4] and the mixing matrix [N, 4, 4]."""
    flat = x.flatten(-2)
    mix = linear(flat, fn).float() * torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    read = torch.sigmoid(mix[..., :4] * scale[0] + base[:4]) + 1e-6
    write = 2 * torch.sigmoid(mix[..., 4:8] * scale[1] + base[4:8])
    comb = sinkhorn(mix[..., 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4))
    return (read[..., None] * x.float()).sum(-2).to(x.dtype), write, comb


def mix_out(x: Tensor, y: Tensor, write: Tensor, comb: Tensor) -> Tensor:
    """mHC after a sublayer: the first index of `comb` is the source stream."""
    wide = x.float()
    out = write[..., None] * y.float()[..., None, :]
    for source in range(4):
        out = out + comb[..., source, :, None] * wide[..., source, None, :]
    return out.to(x.dtype)


def compress(x: Tensor, p: Layer, key: str, ratio: int, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Rows of `ratio` tokens (2.5); `x` [B, T, D] -> [B, T/ratio, dim]."""
    dim, rows = p[key + "_norm"].shape[0], x.shape[1] // ratio
    series = 2 if ratio == 4 else 1
    split = lambda name: linear(x, p[f"{key}_{name}"]).float().view(x.shape[0], rows, ratio, series, dim)
    value, gate = split("wkv"), split("wgate") + p[key + "_ape"].view(ratio, series, dim)
    if ratio == 4:
        value, gate = overlap(value, 0.0), overlap(gate, MASKED)
    else:
        value, gate = value[..., 0, :], gate[..., 0, :]
    pooled = (torch.softmax(gate, 2) * value).sum(2).to(x.dtype)
    return rope(rms(pooled, p[key + "_norm"], eps), cos, sin)


def overlap(series: Tensor, fill: float) -> Tensor:
    """Series A of the previous row beside series B of this one."""
    previous = F.pad(series[:, :-1, :, 0], (0, 0, 0, 0, 1, 0), value=fill)
    return torch.cat([previous, series[:, :, :, 1]], 2)


def index_scores(x: Tensor, qr: Tensor, p: Layer, rows: tuple[Tensor, Tensor], full: tuple[Tensor, Tensor], c: Config, form: str | None) -> Tensor:
    """Indexer (2.6) on detached inputs: [B, T, rows]."""
    batch, length, _ = x.shape
    q = linear(qr, p["i_wq_b"]).view(batch, length, c.index_heads, c.index_dim)
    q = index_row(rope(q, full[0][:, :, None], full[1][:, :, None]), form)
    k = index_row(compress(x, p, "ic", 4, *rows, c.eps), form)
    dots = (q.reshape(batch, length * c.index_heads, c.index_dim) @ k.transpose(1, 2)).view(batch, length, c.index_heads, -1)
    weight = linear(x, p["i_proj"]).float() * (c.index_dim * c.index_heads) ** -0.5
    return (torch.relu(dots.float()) * weight[..., None]).sum(2)


def index_loss(logits: Tensor, peak: Tensor, others: Tensor, scores: Tensor) -> Tensor:
    """KL from the attention on compressed rows, summed over heads, to the index's softmax, weighted by the attended mass."""
    with torch.no_grad():
        weights = torch.exp((logits - peak).clamp(max=60))
        target = (weights / (weights.sum(-1, keepdim=True) + others)).sum(2)
        mass = target.sum(-1, keepdim=True)
        target = target / (mass + 1e-9)
    log_index = torch.log_softmax(scores, -1).clamp(min=-60)
    divergence = (target * (torch.log(target + 1e-9) - log_index)).sum(-1, keepdim=True)
    return (mass * divergence).sum() / (mass.sum() + 1)


def attention(x: Tensor, p: Layer, ratio: int, tables: Tables, dense: Tensor, rounded: Tensor, c: Config, knock: str | None = None) -> tuple[Tensor, Tensor]:
    """Attention sublayer (2.4-2.7) and the index's loss. `knock`: `random` or `off` (C4 rows), `off` (C128 rows), `fp8`/`fp4` index."""
    kind, n_tokens, heads, d = int(ratio > 0), x.shape[0], c.heads, c.head_dim
    cos, sin = tables.cos[kind], tables.sin[kind]
    x = rms(x, p["attn_norm"], c.eps)
    qr = rms(linear(x, p["wq_a"]), p["q_norm"], c.eps)
    q = rope(rms(linear(qr, p["wq_b"]).view(n_tokens, heads, d), None, c.eps), cos[:, None], sin[:, None])
    kv = kv_row(rope(rms(linear(x, p["wkv"]), p["kv_norm"], c.eps), cos, sin), rounded)
    blocks = kv.view(-1, 128, d)
    blocks = torch.cat([F.pad(blocks[:-1], (0, 0, 0, 0, 1, 0)), blocks], 1)
    scale = d**-0.5
    near = (q.view(-1, 128 * heads, d) @ blocks.transpose(1, 2)).view(-1, 128, heads, 256).float() * scale
    near = torch.where(tables.window, near, MASKED).view(n_tokens, heads, 256)
    sink, loss = p["attn_sink"][:, None], x.new_zeros((), dtype=torch.float32)
    logits = near
    if ratio:
        rows, far, kept, scores = compressed_logits(x, q, qr, p, ratio, tables, dense, rounded, c, knock)
        logits = torch.cat([near, kept], -1)
    peak = torch.maximum(logits.amax(-1, keepdim=True), sink).detach()
    weights = torch.exp(logits - peak)
    sink = torch.exp(sink - peak)
    share = (weights / (weights.sum(-1, keepdim=True) + sink)).to(x.dtype)
    out = (share[..., :256].reshape(-1, 128 * heads, 256) @ blocks).view(n_tokens, heads, d)
    if ratio:
        by_batch = share[..., 256:].reshape(tables.batch, tables.length * heads, -1)
        out = out + (by_batch @ rows).view(n_tokens, heads, d)
    if ratio == 4:
        shape = (tables.batch, tables.length, heads, -1)
        others = weights[..., :256].sum(-1, keepdim=True) + sink
        loss = index_loss(far.view(shape), peak.view(shape), others.detach().view(shape), scores)
    out = rope(out, cos[:, None], -sin[:, None]).view(n_tokens, c.o_groups, -1)
    wo_a = p["wo_a"].to(x.dtype).view(c.o_groups, c.o_lora, -1)
    mixed = torch.cat([F.linear(out[:, g], wo_a[g]) for g in range(c.o_groups)], -1)
    return linear(mixed, p["wo_b"]), loss


def compressed_logits(x, q, qr, p, ratio, tables, dense, rounded, c, knock):
    """Compressed rows [B, R, d], their logits before and after selection [N, H, R], and the index scores (None for ratio 128)."""
    batch, length, heads = tables.batch, tables.length, c.heads
    by_batch = lambda t: t.view(batch, length, -1)
    full = by_batch(tables.cos[1]), by_batch(tables.sin[1])
    positions = full[0][:, ::ratio], full[1][:, ::ratio]
    rows = kv_row(compress(by_batch(x), p, "c", ratio, *positions, c.eps), rounded)
    count = rows.shape[1]
    visible = torch.arange(count, device=x.device) < (torch.arange(length, device=x.device)[:, None] + 1) // ratio
    logits = (q.view(batch, length * heads, -1) @ rows.transpose(1, 2)).view(batch, length, heads, count).float() * c.head_dim**-0.5
    logits = torch.where(visible[:, None], logits, MASKED)
    kept, scores = logits, None
    if ratio == 4:
        form = knock if knock in ("fp8", "fp4") else None
        scores = index_scores(by_batch(x.detach()), by_batch(qr.detach()), p, positions, full, c, form)
        scores = torch.where(visible, scores, MASKED)
        with torch.no_grad():
            order = torch.where(visible, torch.rand_like(scores), MASKED) if knock == "random" else scores.detach()
            chosen = (order >= order.topk(min(c.top_k, count), -1).values[..., -1:]) | dense
        kept = torch.where(chosen[:, :, None], logits, MASKED)
    if knock == "off":
        kept = torch.full_like(kept, MASKED)
    flat = (batch * length, heads, count)
    return rows, logits.view(flat), kept.view(flat), scores


def moe(x: Tensor, p: Layer, hashed: Tensor, by_hash: Tensor, bias: Tensor, c: Config) -> tuple[Tensor, Tensor, Tensor]:
    """MoE sublayer (2.8): output, share of tokens per expert, and a balance loss. `by_hash` chooses the given experts `hashed`."""
    x = rms(x, p["ffn_norm"], c.eps)
    scores = torch.sqrt(F.softplus(F.linear(x.float(), p["gate"])))
    with torch.no_grad():
        best = (scores.detach() + bias).topk(c.experts_per_token, -1).indices
        scored = torch.zeros_like(scores).scatter_(-1, best, 1.0)
        chosen = torch.where(by_hash, hashed, scored)
        load = chosen.mean(0)
    picked = scores * chosen
    weight = c.route_scale * picked / (picked.sum(-1, keepdim=True) + 1e-20)
    weight = torch.cat([weight, torch.ones_like(weight[..., :1])], -1)  # the shared expert comes last
    w1, w3 = torch.cat([p["w1"].flatten(0, 1), p["s1"]]), torch.cat([p["w3"].flatten(0, 1), p["s3"]])
    w2 = torch.cat([p["w2"].transpose(1, 2).flatten(0, 1), p["s2"].t()])
    gate, up = linear(x, w1).float().clamp(max=c.swiglu_limit), linear(x, w3).float().clamp(-c.swiglu_limit, c.swiglu_limit)
    hidden = (F.silu(gate) * up).view(x.shape[0], c.experts + 1, -1) * weight[..., None]
    share = (scores / scores.sum(-1, keepdim=True)).mean(0)
    return hidden.flatten(1).to(x.dtype) @ w2.to(x.dtype), load, c.experts * (load * share).sum() / c.experts_per_token


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """One-hot product: its backward pass is a product too, not a slow scatter."""
    one_hot = (ids[:, None] == torch.arange(table.shape[0], device=ids.device)).to(dtype)
    return (one_hot @ table.to(dtype))[:, None].expand(-1, 4, -1).contiguous()


def logits(x: Tensor, top: Layer, c: Config) -> Tensor:
    flat = x.flatten(-2)
    mix = linear(flat, top["hc_head_fn"]).float() * torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + c.eps)
    read = torch.sigmoid(mix * top["hc_head_scale"] + top["hc_head_base"]) + 1e-6
    return linear(rms((read[..., None] * x.float()).sum(-2).to(x.dtype), top["norm"], c.eps), top["head"]).float()


class Model:
    """Parameters, and the forward pass over them. `compiled` wraps the functions above."""

    def __init__(self, c: Config, device: str | torch.device, seed: int = 0, spread: bool = False):
        self.c, self.device = c, device
        make = Initialiser(c, seed, spread)
        leaf = lambda t: t.to(device).requires_grad_()
        self.top = {key: leaf(make(key, shape)) for key, shape in top_shapes(c).items()}
        self.layers = [{key: leaf(make(key, shape)) for key, (_, shape) in layer_shapes(c, i).items()} for i in range(c.layers)]
        self.bias = [make.normal(c.experts).to(device) * (0.1 if spread else 0.0) for _ in range(c.layers)]
        self.expert_ids = [make.expert_ids().to(device) for _ in range(c.hash_layers)]
        self.functions = {f.__name__: f for f in (mix_in, mix_out, attention, moe, embed)}

    def compile(self) -> None:
        self.functions = {name: torch.compile(f, fullgraph=True, dynamic=False) for name, f in self.functions.items() if name != "embed"}
        self.functions["embed"] = embed

    def forward(self, ids: Tensor, tables: Tables, dense: Tensor, rounded: Tensor, dtype: torch.dtype, layers=None, knocks=None):
        """`ids` [B, T] -> residual streams [N, 4, D] and the index losses, loads and balance losses of the layers."""
        f, c, flat = self.functions, self.c, ids.flatten()
        x = f["embed"](flat, self.top["embed"], dtype)
        losses, loads, balances = [], [], []
        for i, p in enumerate(layers or self.layers):
            mixer = lambda part: (p[f"hc_{part}_fn"], p[f"hc_{part}_base"], p[f"hc_{part}_scale"])
            y, write, comb = f["mix_in"](x, *mixer("attn"), c.eps)
            own = {k: v for k, v in p.items() if not k.startswith("hc_") and k not in MOE_KEYS}
            knock = (knocks or {}).get(i)
            y, loss = f["attention"](y, own, c.ratios[i], tables, dense, rounded, c, *([knock] if knock else []))
            x = f["mix_out"](x, y, write, comb)
            y, write, comb = f["mix_in"](x, *mixer("ffn"), c.eps)
            y, load, balance = f["moe"](y, {k: p[k] for k in MOE_KEYS}, *self.routing(i, flat), c)
            x = f["mix_out"](x, y, write, comb)
            losses.append(loss), loads.append(load), balances.append(balance)
        return x, losses, loads, balances

    def routing(self, layer: int, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_hash = torch.full((), layer < self.c.hash_layers, dtype=torch.bool, device=self.device)
        table = torch.zeros(self.c.vocab, self.c.experts, device=self.device)
        if layer < self.c.hash_layers:
            table = table.scatter(1, self.expert_ids[layer], 1.0)
        return table[ids], by_hash, self.bias[layer]


MOE_KEYS = ("ffn_norm", "gate", "w1", "w2", "w3", "s1", "s2", "s3")


class Initialiser:
    """Fan-in initialisation; `spread` draws every parameter widely, so that a check against another model exercises all of them."""

    def __init__(self, c: Config, seed: int, spread: bool):
        self.c, self.spread = c, spread
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def expert_ids(self) -> Tensor:
        draw = torch.rand(self.c.vocab, self.c.experts, generator=self.generator)
        return draw.topk(self.c.experts_per_token, -1).indices

    def __call__(self, key: str, shape: tuple[int, ...]) -> Tensor:
        if key.endswith("norm"):
            return 1 + (0.1 * self.normal(*shape) if self.spread else torch.zeros(shape))
        if key.endswith("_scale"):
            return torch.full(shape, 0.8 if self.spread else 1.0)
        if key.endswith("_base"):
            return self.mixing_base(shape)
        if key == "attn_sink" or key.endswith("ape"):
            return self.normal(*shape) * (1.0 if self.spread else 0.1)
        factor = {"embed": 0.7 * shape[-1] ** 0.5, "head": 0.5, "wo_b": 0.5, "w2": 0.5, "s2": 0.5}.get(key, 1.0)
        if key.endswith("_fn") and not self.spread:
            factor = 0.1
        return self.normal(*shape) * factor * shape[-1] ** -0.5

    def mixing_base(self, shape: tuple[int, ...]) -> Tensor:
        """Streams start out read with about a quarter each and kept mostly to themselves."""
        base = self.normal(*shape) * 0.4
        base[:4] -= 1.1
        if shape[0] > 4:
            base[8:] += (2 * torch.eye(4)).flatten()
        return base
