"""Counter-based weights: every value is a pure function of (seed, tensor name, element index).

Weights need not be stored, because Python and Rust compute the same bits. The Rust twin is
`src/checkpoint/synthetic.rs`; `proptests/golden/generator.json` pins values of both.
"""

import numpy as np

FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3
MASK = (1 << 64) - 1


def fnv1a(name: str) -> int:
    """FNV-1a, 64 bits, over the UTF-8 bytes of a tensor's official name."""
    h = FNV_OFFSET
    for byte in name.encode():
        h = ((h ^ byte) * FNV_PRIME) & MASK
    return h


def bits(seed: int, name: str, index) -> np.ndarray:
    """The 64 random bits at each index: the SplitMix64 finaliser over a keyed counter."""
    key = np.uint64((seed * 0x9E3779B97F4A7C15 + fnv1a(name)) & MASK)
    index = np.asarray(index, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = key + (index + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z


def uniform(seed: int, name: str, index) -> np.ndarray:
    """The upper 24 bits as an f64 in (-1, 1), symmetric about 0."""
    return ((bits(seed, name, index) >> np.uint64(40)).astype(np.float64) + 0.5) * 2.0**-23 - 1.0


def round_bf16(x: np.ndarray) -> np.ndarray:
    """f32 rounded to the nearest bf16 (ties to even), still stored as f32. Finite inputs only."""
    u = x.astype(np.float32).view(np.uint32)
    u = (u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return u.view(np.float32)


def values(seed: int, name: str, shape, mean, std: float, bf16: bool) -> np.ndarray:
    """A whole tensor: `mean + sqrt(3)*std*u` in f64, then f32, then bf16 if the layout says so.

    `mean` is a number or one number per element.
    """
    u = uniform(seed, name, np.arange(int(np.prod(shape)), dtype=np.uint64))
    x = (mean + np.sqrt(3.0) * std * u).astype(np.float32).reshape(shape)
    return round_bf16(x) if bf16 else x


def distinct_ids(seed: int, name: str, rows: int, k: int, n: int) -> np.ndarray:
    """Row t holds k distinct ids below n: the head of a Fisher-Yates shuffle keyed by (t, step)."""
    steps = np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(64) + np.arange(k, dtype=np.uint64)
    z = bits(seed, name, steps)
    pool = np.tile(np.arange(n, dtype=np.int64), (rows, 1))
    every_row = np.arange(rows)
    for j in range(k):
        pick = j + (z[:, j] % np.uint64(n - j)).astype(np.int64)
        pool[every_row, j], pool[every_row, pick] = pool[every_row, pick], pool[every_row, j].copy()
    return np.ascontiguousarray(pool[:, :k])


def tokens(seed: int, name: str, index, vocab: int) -> np.ndarray:
    """Prompt tokens: the 64 bits modulo the vocabulary."""
    return (bits(seed, name, index) % np.uint64(vocab)).astype(np.int64)
