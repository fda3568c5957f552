"""Sinkhorn normalisation of the 4x4 stream-mixing matrices, as one operator with an implicit backward pass.

Twenty rounds of row and column sums would cost forty saved tensors under autograd. The result is nearly doubly stochastic, so the
gradient is that of the limit: `dlogits = P * (G - a_i - b_j)` with row and column multipliers from an alternating solve. On a GPU
both directions are one Triton kernel each, with a matrix per lane.
"""

import torch
from torch import Tensor

ROUNDS = 20
EPS = 1e-6

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU only
    triton = None

if triton is not None:

    @triton.jit
    def _offsets(count, BLOCK: tl.constexpr):
        matrix = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        cell = tl.arange(0, 4)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
        offset = matrix[:, None, None] * 16 + cell
        return offset, offset < count * 16

    @triton.jit
    def _forward_kernel(logits, out, count, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
        offset, inside = _offsets(count, BLOCK)
        x = tl.load(logits + offset, mask=inside, other=0.0)
        x = tl.exp(x - tl.max(x, axis=2, keep_dims=True))
        x = x / tl.sum(x, axis=2, keep_dims=True) + 1e-6
        x = x / (tl.sum(x, axis=1, keep_dims=True) + 1e-6)
        for _ in range(ROUNDS - 1):
            x = x / (tl.sum(x, axis=2, keep_dims=True) + 1e-6)
            x = x / (tl.sum(x, axis=1, keep_dims=True) + 1e-6)
        tl.store(out + offset, x, mask=inside)

    @triton.jit
    def _backward_kernel(result, grad, out, count, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
        offset, inside = _offsets(count, BLOCK)
        p = tl.load(result + offset, mask=inside, other=0.0)
        g = tl.load(grad + offset, mask=inside, other=0.0)
        row = tl.sum(p * g, axis=2, keep_dims=True)
        column = tl.sum(p * (g - row), axis=1, keep_dims=True)
        for _ in range(ROUNDS - 1):
            row = tl.sum(p * (g - column), axis=2, keep_dims=True)
            column = tl.sum(p * (g - row), axis=1, keep_dims=True)
        tl.store(out + offset, p * (g - row - column), mask=inside)


def reference(logits: Tensor) -> Tensor:
    """Plain version, differentiable: `logits` [..., 16] -> [..., 16]."""
    x = torch.softmax(logits.unflatten(-1, (4, 4)), -1) + EPS
    x = x / (x.sum(-2, keepdim=True) + EPS)
    for _ in range(ROUNDS - 1):
        x = x / (x.sum(-1, keepdim=True) + EPS)
        x = x / (x.sum(-2, keepdim=True) + EPS)
    return x.flatten(-2)


def _reference_backward(result: Tensor, grad: Tensor) -> Tensor:
    p, g = result.unflatten(-1, (4, 4)), grad.unflatten(-1, (4, 4))
    column = torch.zeros_like(p[..., :1, :])
    for _ in range(ROUNDS):
        row = (p * (g - column)).sum(-1, keepdim=True)
        column = (p * (g - row)).sum(-2, keepdim=True)
    return (p * (g - row - column)).flatten(-2)


def _launch(kernel, *tensors: Tensor) -> Tensor:
    out = torch.empty_like(tensors[0])
    count = out.numel() // 16
    kernel[(triton.cdiv(count, 128),)](*tensors, out, count, ROUNDS=ROUNDS, BLOCK=128, num_warps=4)
    return out


@torch.library.custom_op("flashlane::sinkhorn", mutates_args=())
def sinkhorn(logits: Tensor) -> Tensor:
    return _launch(_forward_kernel, logits.contiguous()) if logits.is_cuda else reference(logits)


@torch.library.custom_op("flashlane::sinkhorn_backward", mutates_args=())
def _sinkhorn_backward(result: Tensor, grad: Tensor) -> Tensor:
    return _launch(_backward_kernel, result, grad.contiguous()) if result.is_cuda else _reference_backward(result, grad)


@sinkhorn.register_fake
def _(logits: Tensor) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@_sinkhorn_backward.register_fake
def _(result: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(result, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(output)


def _grad(ctx, grad: Tensor) -> Tensor:
    return _sinkhorn_backward(ctx.saved_tensors[0], grad)


sinkhorn.register_autograd(_grad, setup_context=_save)
