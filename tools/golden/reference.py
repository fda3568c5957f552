"""A second, independent forward pass in numpy f64, written from the model's equations.

It shares no code with `transformers`: agreement of the two says that the recorded truth is the model and not
one library's reading of it. Prefill of one sequence; no cache, no rounding of activations.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


class Reference:
    """`forward(ids)` gives logits [S, V]; `tap` then holds streams, sublayer outputs, rows and experts."""

    def __init__(self, weights, config):
        self.w = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in weights.items()}
        self.c = config
        self.tap = {}

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T

    def norm(self, name, x):
        g = self.w[f"{name}.weight"] if name else 1.0
        return g * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.c["rms_norm_eps"])

    def frequencies(self, ratio):
        c = self.c
        rd = c["qk_rope_head_dim"]
        i = np.arange(rd // 2)
        if ratio == 0:
            return c["rope_theta"] ** (-2.0 * i / rd)
        base, s = c["compress_rope_theta"], c["rope_scaling"]
        dim = lambda r: rd * np.log(s["original_max_position_embeddings"] / (2 * np.pi * r)) / (2 * np.log(base))
        low, high = np.floor(dim(s["beta_fast"])), np.ceil(dim(s["beta_slow"]))
        blend = np.clip((i - low) / (high - low), 0, 1)
        f = base ** (-2.0 * i / rd)
        return f * (1 - blend) + f / s["factor"] * blend

    def rope(self, x, positions, ratio, direction=1.0):
        """Rotates the pairs (2i, 2i+1) of the last dimensions of x [S, ..., dims]."""
        rd = self.c["qk_rope_head_dim"]
        angle = direction * positions[:, None] * self.frequencies(ratio)
        turn = np.exp(1j * angle).reshape(len(positions), *[1] * (x.ndim - 2), rd // 2)
        rotated = (x[..., -rd::2] + 1j * x[..., 1 - rd :: 2]) * turn
        out = x.copy()
        out[..., -rd::2], out[..., 1 - rd :: 2] = rotated.real, rotated.imag
        return out

    def hyper_mix(self, prefix, x):
        """The three mixes of one sublayer from the streams x [S, n, D]."""
        c = self.c
        n, eps = c["hc_mult"], c["hc_eps"]
        mix = self.norm(None, x.reshape(len(x), -1)) @ self.w[f"{prefix}_fn"].T
        scale, base = self.w[f"{prefix}_scale"], self.w[f"{prefix}_base"]
        pre = sigmoid(mix[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * sigmoid(mix[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        comb = softmax((mix[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n), axis=2) + eps
        comb /= comb.sum(axis=1, keepdims=True) + eps
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            comb /= comb.sum(axis=2, keepdims=True) + eps
            comb /= comb.sum(axis=1, keepdims=True) + eps
        return pre, post, comb

    def compress(self, prefix, x, ratio):
        """Compressed rows [S // ratio, head_dim] of the normed sublayer input."""
        n = len(x) // ratio
        if n == 0:
            return np.zeros((0, len(self.w[f"{prefix}.norm.weight"])))
        kv = self.linear(f"{prefix}.wkv", x[: n * ratio]).reshape(n, ratio, -1)
        gate = self.linear(f"{prefix}.wgate", x[: n * ratio]).reshape(n, ratio, -1) + self.w[f"{prefix}.ape"]
        if ratio == 4:
            half = kv.shape[2] // 2
            shift = lambda a, fill: np.concatenate([np.full((1, ratio, half), fill), a[:-1, :, :half]])
            kv = np.concatenate([shift(kv, 0.0), kv[:, :, half:]], axis=1)
            gate = np.concatenate([shift(gate, -np.inf), gate[:, :, half:]], axis=1)
        row = self.norm(f"{prefix}.norm", np.sum(softmax(gate, axis=1) * kv, axis=1))
        return self.rope(row, np.arange(n) * ratio, ratio)

    def select(self, layer, x, qr, visible):
        """Boolean [S, rows]: which compressed rows each token attends to in a ratio-4 layer."""
        c, prefix, s = self.c, f"layers.{layer}.attn.indexer", len(x)
        q = self.linear(f"{prefix}.wq_b", qr).reshape(s, c["index_n_heads"], c["index_head_dim"])
        q = self.rope(q, np.arange(s), 4)
        keys = self.compress(f"{prefix}.compressor", x, 4)
        w = self.linear(f"{prefix}.weights_proj", x) * (c["index_head_dim"] * c["index_n_heads"]) ** -0.5
        score = np.einsum("sh,shr->sr", w, np.maximum(np.einsum("shd,rd->shr", q, keys), 0))
        score = np.where(visible, score, -np.inf)
        order = np.argsort(-score, axis=1, kind="stable")[:, : c["index_topk"]]
        chosen = np.zeros_like(visible)
        np.put_along_axis(chosen, order, True, axis=1)
        return chosen & visible

    def attention(self, layer, x):
        c, p, s = self.c, f"layers.{layer}.attn", len(x)
        ratio, hd, t = c["compress_ratios"][layer], c["head_dim"], np.arange(len(x))
        qr = self.norm(f"{p}.q_norm", self.linear(f"{p}.wq_a", x))
        q = self.linear(f"{p}.wq_b", qr).reshape(s, c["num_attention_heads"], hd)
        q = self.rope(self.norm(None, q), t, ratio)
        rows = self.rope(self.norm(f"{p}.kv_norm", self.linear(f"{p}.wkv", x)), t, ratio)
        seen = (t[None] <= t[:, None]) & (t[None] > t[:, None] - c["sliding_window"])
        if ratio:
            extra = self.compress(f"{p}.compressor", x, ratio)
            visible = np.arange(len(extra))[None] < ((t + 1) // ratio)[:, None]
            if ratio == 4:
                visible = self.select(layer, x, qr, visible)
                self.tap[f"layers.{layer}.rows"] = visible
            rows, seen = np.concatenate([rows, extra]), np.concatenate([seen, visible], axis=1)
        logits = np.einsum("shd,rd->shr", q, rows) * hd**-0.5
        logits = np.where(seen[:, None], logits, -np.inf)
        sink = np.broadcast_to(self.w[f"{p}.attn_sink"][None, :, None], (*logits.shape[:2], 1))
        prob = softmax(np.concatenate([logits, sink], axis=2), axis=2)[..., :-1]
        o = self.rope(np.einsum("shr,rd->shd", prob, rows), t, ratio, direction=-1.0)
        g, ro = c["o_groups"], c["o_lora_rank"]
        u = np.einsum("sgi,goi->sgo", o.reshape(s, g, -1), self.w[f"{p}.wo_a.weight"].reshape(g, ro, -1))
        return self.linear(f"{p}.wo_b", u.reshape(s, -1))

    def expert(self, prefix, x, weight=None):
        limit = self.c["swiglu_limit"]
        g = np.minimum(self.linear(f"{prefix}.w1", x), limit)
        u = np.clip(self.linear(f"{prefix}.w3", x), -limit, limit)
        h = g * sigmoid(g) * u
        return self.linear(f"{prefix}.w2", h if weight is None else weight[:, None] * h)

    def feed_forward(self, layer, x, ids):
        c, p = self.c, f"layers.{layer}.ffn"
        score = np.sqrt(np.logaddexp(0, self.linear(f"{p}.gate", x)))
        if layer < c["num_hash_layers"]:
            chosen = self.w[f"{p}.gate.tid2eid"][ids]
        else:
            order = np.argsort(-(score + self.w[f"{p}.gate.bias"]), axis=1, kind="stable")
            chosen = order[:, : c["num_experts_per_tok"]]
        self.tap[f"layers.{layer}.experts"] = np.sort(chosen, axis=1)
        weight = np.take_along_axis(score, chosen, axis=1)
        weight *= c["routed_scaling_factor"] / weight.sum(axis=1, keepdims=True)
        out = self.expert(f"{p}.shared_experts", x)
        for e in range(c["n_routed_experts"]):
            token, slot = np.nonzero(chosen == e)
            out[token] += self.expert(f"{p}.experts.{e}", x[token], weight[token, slot])
        return out

    def sublayer(self, name, prefix_hc, prefix_norm, x, body):
        pre, post, comb = self.hyper_mix(prefix_hc, x)
        y = body(self.norm(prefix_norm, np.einsum("sj,sjd->sd", pre, x)))
        self.tap[name] = y
        return post[..., None] * y[:, None] + np.einsum("sjk,sjd->skd", comb, x)

    def forward(self, ids):
        c = self.c
        x = np.repeat(self.w["embed.weight"][ids][:, None], c["hc_mult"], axis=1)
        for i in range(c["num_hidden_layers"]):
            p = f"layers.{i}"
            x = self.sublayer(f"{p}.attn", f"{p}.hc_attn", f"{p}.attn_norm", x, lambda v: self.attention(i, v))
            x = self.sublayer(f"{p}.ffn", f"{p}.hc_ffn", f"{p}.ffn_norm", x, lambda v: self.feed_forward(i, v, ids))
            self.tap[f"{p}.streams"] = x
        mix = self.norm(None, x.reshape(len(x), -1)) @ self.w["hc_head_fn"].T
        pre = sigmoid(mix * self.w["hc_head_scale"] + self.w["hc_head_base"]) + c["hc_eps"]
        return self.linear("head", self.norm("norm", np.einsum("sj,sjd->sd", pre, x)))
