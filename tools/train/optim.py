"""Muon for the weight matrices, AdamW for the rest; every step is capturable in a CUDA graph.

Rates are tensors, so that a captured step follows the schedule. Gradients of everything but the index are clipped to norm 1.
"""

import torch
from torch import Tensor

from model import Model

MUON = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b", "c_wkv", "c_wgate", "w1", "w2", "w3", "s1", "s2", "s3"}
MOMENTUM = 0.95
MUON_DECAY = 0.05


def as_matrices(key: str, p: Tensor, model: Model) -> tuple[int, int, int]:
    """The stack of independent matrices that a parameter holds."""
    c = model.c
    if key == "wo_a":
        return c.o_groups, c.o_lora, p.shape[1]
    if key in ("c_wkv", "c_wgate"):
        return p.shape[0] // c.head_dim, c.head_dim, p.shape[1]
    return (1, *p.shape) if p.ndim == 2 else tuple(p.shape)


def orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz iteration on a stack of matrices."""
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.transpose(1, 2)
    x = (x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16().contiguous()
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x if wide else x.transpose(1, 2)).float()


class Optimizer:
    def __init__(self, model: Model):
        self.rate, self.slow_rate, self.index_rate, self.muon_rate = (torch.zeros((), device=model.device) for _ in range(4))
        plain, index, mixers, self.muon = [], [], [], []
        for key, p in [*model.top.items(), *(item for layer in model.layers for item in layer.items())]:
            if key.endswith("_fn"):
                mixers.append(p)
            elif key.startswith("i"):
                index.append(p)
            elif key in MUON:
                self.muon.append((p, as_matrices(key, p, model)))
            else:
                plain.append(p)
        self.clipped = plain + mixers + [p for p, _ in self.muon]
        self.parameters = self.clipped + index
        self.momentum = [torch.zeros_like(p) for p, _ in self.muon]
        group = lambda params, rate, decay=0.0: {"params": params, "lr": rate, "weight_decay": decay}
        groups = [group([p for p in plain if p.ndim > 1], self.rate, 0.01), group([p for p in plain if p.ndim < 2], self.rate),
                  group(index, self.index_rate), group(mixers, self.slow_rate)]
        on_gpu = torch.device(model.device).type == "cuda"
        self.adam = torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98), eps=1e-9, fused=on_gpu, capturable=on_gpu)

    def set_rates(self, factor: float, adam: float, muon: float) -> None:
        self.rate.fill_(adam * factor)
        self.slow_rate.fill_(0.1 * adam * factor)
        self.index_rate.fill_(1e-3 * max(factor, 0.2))
        self.muon_rate.fill_(muon * factor)

    def zero(self) -> None:
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> Tensor:
        """Applies the gradients and returns their norm."""
        grads = [p.grad for p in self.clipped]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        torch._foreach_mul_(grads, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        self.adam.step()
        self.muon_step()
        return norm

    def muon_step(self) -> None:
        grads = [p.grad for p, _ in self.muon]
        torch._foreach_lerp_(self.momentum, grads, 1 - MOMENTUM)
        updates = torch._foreach_lerp(grads, self.momentum, MOMENTUM)
        groups: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for (p, shape), update in zip(self.muon, updates):
            groups.setdefault(shape[1:], []).append((p, update.view(shape)))
        for (rows, columns), members in groups.items():
            direction = orthogonal(torch.cat([update for _, update in members])) * max(1.0, rows / columns) ** 0.5
            for (p, _), part in zip(members, direction.split([update.shape[0] for _, update in members])):
                p.mul_(1 - self.muon_rate * MUON_DECAY).sub_((part * self.muon_rate).reshape(p.shape))
