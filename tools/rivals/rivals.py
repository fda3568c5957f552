#!/usr/bin/env python3
"""Times public implementations on the shapes of examples/kernel_times, as JSON: tools/rivals/rivals.py > rivals.json

Needs PyTorch with CUDA and a GPU; nothing else is installed or fetched. The method is that of kernel_times: a captured graph of
launches over distinct data, the second-level cache cleared before each replay, the median of the replays divided by the
launches. Beside the cases it measures the rates at which memory can be read, and copied, on the same GPU.

A rival is called through its public Python API alone. Those of PyTorch are `topk`, `linear` in bf16 and `rms_norm`: it has no
paged index logits, no NVFP4 experts and no attention over selected rows, so those kernels have no rival here.
"""
import argparse
import json
import statistics
import sys

REPEATS = 9
HIDDEN = 4096


def replay(torch, calls, repeats=REPEATS):
    """Median microseconds of one of `calls`, replayed as one graph with a cold cache."""
    clear = torch.empty(64 << 20, dtype=torch.float32, device="cuda")
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
        clear.fill_(0.0)
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


def topk(torch):
    for batch, rows in [(batch, rows) for batch in (1, 8, 64) for rows in (2048, 8192, 32768, 262_144)]:
        copies = min(8, max(1, 8_000_000 // (batch * rows)))
        data = [torch.randn(batch, rows, device="cuda") for _ in range(copies)]
        calls = [lambda x=x: torch.topk(x, 512, sorted=False) for x in data]
        yield "torch.topk", "topk", f"{batch} x {rows}, k 512", calls


def linear(torch):
    function = torch.nn.functional.linear
    for rows in [1, 8, 64, 256]:
        pairs = [
            (torch.randn(rows, HIDDEN, device="cuda").bfloat16(), torch.randn(HIDDEN, HIDDEN, device="cuda").bfloat16())
            for _ in range(8)
        ]
        calls = [lambda x=x, w=w: function(x, w) for x, w in pairs]
        yield "torch.nn.functional.linear", "linear", f"Bf16 {rows} x {HIDDEN} -> {HIDDEN}", calls


def rmsnorm(torch):
    function, weight = torch.nn.functional.rms_norm, torch.randn(HIDDEN, device="cuda").bfloat16()
    for rows in [1, 64]:
        data = [torch.randn(rows, HIDDEN, device="cuda").bfloat16() for _ in range(8)]
        calls = [lambda x=x: function(x, (HIDDEN,), weight, 1e-6) for x in data]
        yield "torch.nn.functional.rms_norm", "rmsnorm", f"{rows} rows", calls


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("rivals: PyTorch is not installed; pip install torch")
    if not torch.cuda.is_available():
        sys.exit("rivals: PyTorch sees no CUDA device")
    cases = []
    for suite in (topk, linear, rmsnorm):
        for rival, kernel, shape, calls in suite(torch):
            micros = replay(torch, calls)
            print(f"{rival:28} {shape:28} {micros:10.2f} us", file=sys.stderr)
            cases.append({"rival": rival, "kernel": kernel, "shape": shape, "us": round(micros, 3)})
    report = {
        "gpu": torch.cuda.get_device_name(0),
        "packages": {"torch": torch.__version__},
        "repeats": REPEATS,
        "bytes_per_second": ceilings(torch),
        "cases": cases,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
