#!/usr/bin/env python3
"""Times public implementations on the shapes of bench/, as JSON: tools/rivals/rivals.py > rivals.json

Needs PyTorch with CUDA and a GPU. DeepGEMM and FlashMLA take part where they can be imported (README.md tells from where); a
rival that is missing, or refuses a shape, is named on stderr and left out. The method is that of bench/gpu.rs: a captured graph
of launches over distinct data, the second-level cache cleared before each replay by reading, the median of the replays divided
by the launches. Beside the cases it measures, on the same GPU, the rates at which memory can be read and copied, and those of
large matrix products.

A rival is called through its public API alone: Python, or the headers of FlashInfer.
"""
import argparse
import ctypes
import json
import os
import statistics
import sys

import moe

REPEATS = 9
HIDDEN = 4096
HEADS = 64


def replay(torch, calls, repeats=REPEATS):
    """Median microseconds of one of `calls`, replayed as one graph with a cold cache."""
    clear = torch.ones(64 << 20, dtype=torch.float32, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    times = []
    for _ in range(repeats + 1):
        clear.sum()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    del kept
    return statistics.median(times[1:])


def ceilings(torch):
    """Bytes a second: reading 4 GiB by a sum and by a maximum, and copying 2 GiB (bytes read and written)."""
    data = torch.ones(1 << 30, dtype=torch.float32, device="cuda")
    size = data.numel() * 4
    half = data[: 1 << 29], data[1 << 29 :]
    reads = {"sum": lambda: torch.sum(data), "amax": lambda: torch.amax(data)}
    found = {f"read_{name}": size / replay(torch, [call]) * 1e6 for name, call in reads.items()}
    found["copy"] = size / replay(torch, [lambda: half[0].copy_(half[1])]) * 1e6
    return found


def products(torch, n=8192):
    """Multiplications and additions a second of an n x n x n product of random numbers, by cuBLASLt."""
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    found = {"bf16": 2 * n**3 / replay(torch, [lambda: a @ b.T] * 4) * 1e6}
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    product = lambda: torch._scaled_mm(a8, b8.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    found["fp8"] = 2 * n**3 / replay(torch, [product] * 4) * 1e6
    return found


def topk(torch):
    for batch, rows in [(batch, rows) for batch in (1, 8, 64) for rows in (2048, 8192, 32768, 262_144)]:
        copies = min(8, max(1, 8_000_000 // (batch * rows)))
        data = [torch.randn(batch, rows, device="cuda") for _ in range(copies)]
        calls = [lambda x=x: torch.topk(x, 512, sorted=False) for x in data]
        yield "torch.topk", "topk", f"{batch} x {rows} k 512", calls


class Selection:
    """FlashInfer's 512 best of each row, with the memory that it writes."""

    def __init__(self, torch, library, batch, deterministic):
        self.torch, self.library, self.deterministic = torch, library, deterministic
        self.values = torch.empty(batch, 512, device="cuda")
        self.ids = torch.empty(batch, 512, device="cuda", dtype=torch.int32)
        self.states = torch.zeros(1 << 20, device="cuda", dtype=torch.uint8)

    def __call__(self, data):
        x, i, v, s = (ctypes.c_void_p(t.data_ptr()) for t in (data, self.ids, self.values, self.states))
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        batch, width = data.shape[0], data.stride(0)
        error = self.library.flashinfer_topk(x, i, v, batch, 512, width, s, self.deterministic, stream)
        if error:
            raise RuntimeError(f"CUDA error {error}")
        return self.ids


def flashinfer_topk(torch, library):
    """As FlashInfer chooses, and as it does where the same rows must come out each time, which `topk` promises."""
    for batch, rows in [(batch, rows) for batch in (1, 8, 64) for rows in (2048, 8192, 32768, 262_144)]:
        for deterministic in (0, 1):
            calls = []
            for _ in range(min(8, max(1, 8_000_000 // (batch * rows)))):
                data, select = torch.randn(batch, rows, device="cuda"), Selection(torch, library, batch, deterministic)
                calls.append(lambda data=data, select=select: select(data))
            found, want = select(data).long().sort().values, torch.topk(data, 512).indices.sort().values
            if not torch.equal(found, want):
                raise RuntimeError(f"other rows than torch.topk's at {batch} x {rows}")
            name = "FlashInfer's TopKDispatch" + (", deterministic" if deterministic else "")
            yield name, "topk", f"{batch} x {rows} k 512", calls


def linear(torch):
    function = torch.nn.functional.linear
    for rows in [1, 8, 64, 256]:
        pairs = [
            (torch.randn(rows, HIDDEN, device="cuda").bfloat16(), torch.randn(HIDDEN, HIDDEN, device="cuda").bfloat16())
            for _ in range(8)
        ]
        calls = [lambda x=x, w=w: function(x, w) for x, w in pairs]
        yield "torch.nn.functional.linear", "linear", f"Bf16 {rows} x {HIDDEN} to {HIDDEN}", calls


def rmsnorm(torch):
    function, weight = torch.nn.functional.rms_norm, torch.randn(HIDDEN, device="cuda").bfloat16()
    for rows in [1, 64]:
        data = [torch.randn(rows, HIDDEN, device="cuda").bfloat16() for _ in range(8)]
        calls = [lambda x=x: function(x, (HIDDEN,), weight, 1e-6) for x in data]
        yield "torch.nn.functional.rms_norm", "rmsnorm", f"{rows} rows", calls


def paged_keys(torch, batch, rows):
    """fp8 index keys as the cache holds them: 64 rows of codes, then 64 scales, to a page; the pages of a request scattered."""
    pages = batch * rows // 64
    codes = torch.randn(pages, 64 * 128, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8)
    scales = torch.ones(pages, 64, device="cuda").view(torch.uint8)
    table = torch.randperm(pages, device="cuda", dtype=torch.int32).view(batch, rows // 64)
    return torch.cat([codes, scales], 1).view(pages, 64, 1, 132), table


def scores(torch, deep_gemm, batch, rows):
    """Calls that score `rows` keys for each of `batch` tokens."""
    lengths = torch.full((batch, 1), rows, dtype=torch.int32, device="cuda")
    plan = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, deep_gemm.get_num_sms())
    calls = []
    for _ in range(min(8, max(1, 4_000_000 // (batch * rows)))):
        query = torch.randn(batch, 1, HEADS, 128, device="cuda").to(torch.float8_e4m3fn)
        weights = torch.randn(batch, HEADS, device="cuda")
        keys, table = paged_keys(torch, batch, rows)
        operands = (query, keys, weights, lengths, table, plan, rows, False)
        calls.append(lambda operands=operands: deep_gemm.fp8_paged_mqa_logits(*operands))
    # All scales are one.
    codes = keys.view(-1, 64 * 132)[table[0].long(), : 64 * 128].view(torch.float8_e4m3fn).float().view(rows, 128)
    want = weights[0] @ (query[0, 0].float() @ codes.T).relu()
    close(calls[-1]()[0, :rows], want, f"logits of {batch} x {rows}")
    return calls


def close(found, want, what):
    off = ((found.float() - want).abs().max() / want.abs().max()).item()
    if not off < 0.03:
        raise RuntimeError(f"{what} are off by {off} of the largest")


def index_logits(torch, deep_gemm):
    for batch, rows in [(1, 2048), (1, 32768), (1, 262_144), (8, 32768), (64, 2048), (64, 32768), (64, 262_144)]:
        name = "deep_gemm.fp8_paged_mqa_logits"
        yield name, "index_logits_fast", f"Fp8 {batch} x {rows}", scores(torch, deep_gemm, batch, rows)


def index_select(torch, deep_gemm, top=None):
    """Two calls, since nothing public does both in one; `top` is FlashInfer's library."""
    for batch, rows in [(batch, rows) for batch in (1, 8, 64) for rows in (2048, 8192, 32768)]:
        logits, shape = scores(torch, deep_gemm, batch, rows), f"Fp8 {batch} x {rows} k 512"
        calls = [lambda c=c: torch.topk(c(), 512, sorted=False) for c in logits]
        yield "deep_gemm.fp8_paged_mqa_logits, then torch.topk", "index_select", shape, calls
        if top:
            calls = [lambda c=c, t=Selection(torch, top, batch, 0): t(c()) for c in logits]
            yield "deep_gemm.fp8_paged_mqa_logits, then FlashInfer's TopKDispatch", "index_select", shape, calls


def deep_linear(torch, deep_gemm):
    """bf16, and fp8 weights with activations that are in fp8 already, as its interface wants them."""
    for rows in [1, 8, 64, 256]:
        calls, calls8 = [], []
        for _ in range(8):
            x, w = (torch.randn(n, HIDDEN, device="cuda").bfloat16() for n in (rows, HIDDEN))
            out = torch.empty(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
            calls.append(lambda x=x, w=w, out=out: deep_gemm.bf16_gemm_nt(x, w, out))
            x8 = x.to(torch.float8_e4m3fn), torch.ones(rows, HIDDEN // 128, device="cuda")
            w8 = w.to(torch.float8_e4m3fn), torch.ones(HIDDEN // 128, HIDDEN // 128, device="cuda")
            calls8.append(lambda x=x8, w=w8, out=out: deep_gemm.fp8_gemm_nt(x, w, out))
        shape = f"{rows} x {HIDDEN} to {HIDDEN}"
        yield "deep_gemm.bf16_gemm_nt", "linear", f"Bf16 {shape}", calls
        yield "deep_gemm.fp8_gemm_nt, fp8 activations", "linear", f"Fp8Block {shape}", calls8


def kv_pool(torch, requests, rows):
    """fp8 key/value rows as the cache holds them: 64 rows of 576 bytes, then 64 x 8 scales, to a page of 37,440 bytes; and the
    rows of the first request as numbers."""
    pages = requests * rows // 64
    pool = torch.randint(0, 64, (pages, 37_440), device="cuda", dtype=torch.uint8)
    pool[:, 64 * 576 :] = 127
    shape, strides = (pages, 64, 1, 584), (37_440, 584, 584, 1)
    first = pool[: rows // 64, : 64 * 576].reshape(rows, 576)
    codes, rotated = first[:, :448].contiguous(), first[:, 448:].contiguous()
    values = torch.cat([codes.view(torch.float8_e4m3fn).float(), rotated.view(torch.bfloat16).float()], 1)
    return torch.as_strided(pool, shape, strides).view(torch.float8_e4m3fn), values


def attended(torch, q, rows, sink):
    """Heads of one query over rows, with a sink in the denominator."""
    score = q.float() @ rows.T * 512**-0.5
    top = score.max(1, keepdim=True).values
    weight = (score - top).exp()
    return (weight / (weight.sum(1, keepdim=True) + (sink[:, None] - top).exp())) @ rows


def attention(torch, flashmla):
    """A window of 128 rows and 512 selected ones. The inverse rotation of the output, which `attention` does, is not in it."""
    for batch in [1, 8, 64]:
        calls = []
        for _ in range(8):
            q, sink = torch.randn(batch, 1, HEADS, 512, device="cuda").bfloat16(), torch.randn(HEADS, device="cuda")
            (window, near_rows), (rows, far_rows) = kv_pool(torch, batch, 128), kv_pool(torch, batch, 2048)
            requests = torch.arange(batch, device="cuda", dtype=torch.int32).view(batch, 1, 1)
            near = requests * 128 + torch.arange(128, device="cuda", dtype=torch.int32)
            far = requests * 2048 + torch.arange(512, device="cuda", dtype=torch.int32) * 4
            keywords = {"attn_sink": sink, "extra_k_cache": rows, "extra_indices_in_kvcache": far}
            keywords |= {"indices": near, "is_fp8_kvcache": True}
            plan = flashmla.get_mla_metadata()[0]
            calls.append(
                lambda q=q, w=window, plan=plan, k=keywords: flashmla.flash_mla_with_kvcache(q, w, None, None, 512, plan, **k)
            )
        want = attended(torch, q[0, 0], torch.cat([near_rows, far_rows[::4]]), sink)
        close(calls[-1]()[0][0, 0], want, f"heads of {batch}")
        name = "flash_mla_with_kvcache, no inverse rotation"
        yield name, "attention", f"Fp8 {batch} x (128 + 512) rows", calls


def imported(names):
    """The first module of these that there is, or None with the reason on stderr."""
    import importlib

    for name in names:
        try:
            return importlib.import_module(name)
        except Exception as error:  # a library that does not fit raises what it likes
            print(f"rivals: no {name}: {type(error).__name__}: {error}", file=sys.stderr)
    return None


def timed(torch, suite, *modules):
    cases, all = [], suite(torch, *modules)
    while True:
        try:
            rival, kernel, shape, calls = next(all)
            micros = replay(torch, calls)
        except StopIteration:
            return cases
        except Exception as error:
            print(f"rivals: {suite.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
            torch.cuda.synchronize()
            continue
        print(f"{rival:48} {shape:28} {micros:10.2f} us", file=sys.stderr, flush=True)
        cases.append({"rival": rival, "kernel": kernel, "shape": shape, "us": round(micros, 3)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flashinfer-topk", metavar="FILE", help="flashinfer_topk.cu, built as README.md says")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("rivals: PyTorch is not installed; pip install torch")
    if not torch.cuda.is_available():
        sys.exit("rivals: PyTorch sees no CUDA device")
    deep_gemm = imported(["deep_gemm", "vllm.third_party.deep_gemm"])
    flashmla = imported(["flash_mla", "vllm.third_party.flashmla.flash_mla_interface"])
    suites = [(topk,), (linear,), (rmsnorm,)]
    flashinfer = ctypes.CDLL(arguments.flashinfer_topk) if arguments.flashinfer_topk else None
    if flashinfer:
        suites.append((flashinfer_topk, flashinfer))
    if deep_gemm:
        suites += [(index_logits, deep_gemm), (index_select, deep_gemm, flashinfer), (deep_linear, deep_gemm)]
    if flashmla:
        suites.append((attention, flashmla))
    suites += moe.suites(torch)
    packages = {"torch": torch.__version__}
    packages |= {"DeepGEMM": deep_gemm.__version__} if deep_gemm else {}
    packages |= {"Triton": sys.modules["triton"].__version__} if "triton" in sys.modules else {}
    report = {
        "gpu": torch.cuda.get_device_name(0),
        "run": os.environ.get("FLASHLANE_BENCH_RUN"),
        "packages": packages,
        "repeats": REPEATS,
        "bytes_per_second": ceilings(torch),
        "flops_per_second": products(torch),
        "cases": [case for suite, *modules in suites for case in timed(torch, suite, *modules)],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
