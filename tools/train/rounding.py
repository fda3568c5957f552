"""The shipped number formats as roundings: FP8 and NVFP4 weights, FP8 KV rows, FP4 and FP8 index rows (model.md 2.4, 2.6, 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from config import FP4, FP8


def power_of_two(scale: Tensor) -> Tensor:
    return torch.exp2(torch.ceil(torch.log2(scale)))


def e4m3(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def e2m1(x: Tensor) -> Tensor:
    """Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even code."""
    size = x.abs().clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(size / step) * step * x.sign()


def fp8_tiles(x: Tensor, tile: int) -> Tensor:
    """e4m3 with a power-of-two scale for each `tile` values of the last dimension."""
    tiles = x.float().unflatten(-1, (-1, tile))
    scale = power_of_two(tiles.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)
    return (e4m3(tiles / scale) * scale).flatten(-2)


def kv_row(row: Tensor, enabled: Tensor) -> Tensor:
    """FP8 on the part without position, straight through; `enabled` is a 0-or-1 tensor, so that one graph serves both."""
    plain, rope = row[..., :-64], row[..., -64:]
    error = (fp8_tiles(plain.detach(), 64) - plain.detach().float()) * enabled
    return torch.cat([plain + error.to(row.dtype), rope], -1)


def hadamard(size: int, device: torch.device) -> Tensor:
    h = torch.ones(1, 1, device=device)
    while h.shape[0] < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h * size**-0.5


def index_row(x: Tensor, form: str | None) -> Tensor:
    """Rounding of index queries and keys: None, `fp8` (a scale per row) or `fp4` (rotated, a scale per 32)."""
    if form is None:
        return x
    if form == "fp8":
        return fp8_tiles(x, x.shape[-1]).to(x.dtype)
    tiles = (x.float() @ hadamard(x.shape[-1], x.device)).unflatten(-1, (-1, 32))
    scale = power_of_two(tiles.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) / 6)
    return (e2m1(tiles / scale) * scale).flatten(-2).to(x.dtype)


def fp8_weight(w: Tensor) -> Tensor:
    """e4m3 in 128x128 blocks with power-of-two scales."""
    rows, columns = w.shape
    padded = F.pad(w.float(), (0, -columns % 128, 0, -rows % 128))
    blocks = padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
    scale = power_of_two(blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-30) / 448)
    return (e4m3(blocks / scale) * scale).flatten(0, 1).flatten(1, 2)[:rows, :columns]


def nvfp4_weight(w: Tensor) -> Tensor:
    """e2m1 with an e4m3 scale for each 16 inputs and one scale for each expert; `w` [experts, out, in]."""
    tiles = w.float().unflatten(-1, (-1, 16))
    outer = w.abs().amax((1, 2), keepdim=True).float().clamp(min=1e-30)[..., None] / (6 * 448)
    scale = e4m3((tiles.abs().amax(-1, keepdim=True) / (6 * outer)).clamp(2.0**-9, 448)) * outer
    return (e2m1(tiles / scale) * scale).flatten(-2)


def shipped(key: str, w: Tensor) -> Tensor:
    """The value of a parameter after the shipped rounding."""
    if key in FP8:
        return fp8_weight(w)
    return nvfp4_weight(w) if key in FP4 else w


def straight_through(layers: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Layers whose FP8 and FP4 weights are rounded in the forward pass and plain in the backward pass."""
    rounded = lambda key, w: w + (shipped(key, w.detach()) - w.detach()) if key in FP8 | FP4 else w
    return [{key: rounded(key, w) for key, w in layer.items()} for layer in layers]
