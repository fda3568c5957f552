"""Rivals of `experts`: vLLM's Marlin kernel for NVFP4 and MXFP4 weights, and the kernels of triton_kernels for MXFP4.

Both take bf16 activations, as ours do. Marlin has neither SwiGLU nor the sum over a token's experts, which other kernels do;
triton_kernels has both."""
import importlib
import pathlib
import sys

EXPERTS, TOP_K, HIDDEN, WIDTH = 256, 6, 4096, 2048
NODES = 8
E2M1 = 562_949_953_487_106  # vLLM's number of the type.
BLOCK = 8  # Rows of a block of Marlin's, as vLLM chooses it for these shapes.


def ids(rows, node):
    """The experts of each row, as bench/experts.rs has them."""
    return [sorted((t * 157 + t // 8 * 25 + j + node * 63) % EXPERTS for j in range(TOP_K)) for t in range(rows)]


def shape(name, rows):
    active = len({expert for row in ids(rows, 0) for expert in row})
    return f"{name} {HIDDEN} x {WIDTH} {rows} rows {active} experts"


def codes(torch, *sizes):
    return torch.randint(-(1 << 31), (1 << 31) - 1, sizes, device="cuda", dtype=torch.int32)


def aligned(torch, routes):
    """Pairs by expert, each expert's padded to whole blocks; the blocks' experts; how many pairs that makes."""
    pairs, blocks, total = [], [], sum(map(len, routes))
    for expert in range(EXPERTS):
        own = [t * TOP_K + j for t, row in enumerate(routes) for j, e in enumerate(row) if e == expert]
        own += [total] * (-len(own) % BLOCK)
        pairs += own
        blocks += [expert] * (len(own) // BLOCK)
    return [torch.tensor(x, device="cuda", dtype=torch.int32) for x in (pairs, blocks, [len(pairs)])]


class Marlin:
    """One of the two products, `columns` from `depth`."""

    def __init__(self, torch, name, columns, depth, top_k):
        group, kind = {"Nvfp4": (16, torch.float8_e4m3fn), "Mxfp4": (32, torch.float8_e8m0fnu)}[name]
        self.torch, self.columns, self.depth, self.top_k = torch, columns, depth, top_k
        self.weight = codes(torch, EXPERTS, depth // 16, columns * 2)
        # A scale of one: in NVFP4 as vLLM writes it, 5 bits of exponent with a bias of 8, and 3 of mantissa; and what the
        # expansion of codes leaves out lies in the second-level scale.
        one = {"Nvfp4": 0xB0, "Mxfp4": 127}[name]
        self.scales = torch.full((EXPERTS, depth // group, columns), one, device="cuda", dtype=torch.uint8).view(kind)
        self.world = torch.full((EXPERTS,), 2.0**119, device="cuda") if name == "Nvfp4" else None
        self.workspace = torch.zeros(4 * 256, device="cuda", dtype=torch.int32)

    def call(self, x, rows, routes):
        torch, blocks = self.torch, aligned(self.torch, routes)
        out = torch.empty(rows * TOP_K, self.columns, device="cuda", dtype=torch.bfloat16)
        weights = torch.ones(rows, TOP_K, device="cuda")
        function, none = torch.ops._moe_C.moe_wna16_marlin_gemm, [None] * 3
        before = [x, out, self.weight, None, self.scales, None, self.world, *none, self.workspace, *blocks, weights, BLOCK]
        after = [self.top_k, self.top_k == 1, E2M1, x.shape[0], self.columns, self.depth, True, False, True, False, -1, -1, -1]
        return lambda: function(*before, *after)

    def check(self):
        """With weights and scales all alike every output of a row is the row's sum, times the same number."""
        torch, kept = self.torch, self.weight
        self.weight = torch.full_like(kept, 0x22222222)
        x = torch.rand(8 if self.top_k > 1 else 8 * TOP_K, self.depth, device="cuda").bfloat16()
        found = self.call(x, 8, ids(8, 0))().float()
        want = x.float().sum(1).repeat_interleave(self.top_k if self.top_k > 1 else 1)[:, None]
        ratio = found / want
        if not (ratio.std() / ratio.mean()).abs() < 0.01:
            raise RuntimeError(f"sums are off by {(ratio.std() / ratio.mean()).item()}")
        self.weight = kept


def marlin(torch):
    for name, sizes in [("Nvfp4", [1, 8, 64]), ("Mxfp4", [8, 64])]:
        for kernel, lacks, columns, depth, top_k in [
            ("experts_up", "no SwiGLU", 2 * WIDTH, HIDDEN, TOP_K),
            ("experts_down", "experts not added", HIDDEN, WIDTH, 1),
        ]:
            product = Marlin(torch, name, columns, depth, top_k)
            product.check()
            for rows in sizes:
                inputs = rows if top_k > 1 else rows * TOP_K
                xs = [torch.randn(inputs, depth, device="cuda").bfloat16() for _ in range(NODES)]
                calls = [product.call(x, rows, ids(rows, node)) for node, x in enumerate(xs)]
                yield f"vLLM's Marlin, {lacks}", kernel, shape(name, rows), calls


class Triton:
    """The modules of triton_kernels, and weights as it wants them on this GPU."""

    def __init__(self, torch):
        self.torch = torch
        names = "matmul_ogs", "routing", "swiglu", "numerics", "tensor", "tensor_details.layout", "matmul_ogs_details.opt_flags"
        self.ogs, self.routing, self.swiglu, self.numerics, self.tensor, self.layout, flags = (
            importlib.import_module(f"triton_kernels.{name}") for name in names
        )
        flags.update_opt_flags_constraints({"split_k": 1})

    def weight(self, columns, depth, fill=None):
        torch, tensor, layout = self.torch, self.tensor, self.layout
        raw = codes(torch, EXPERTS, columns, depth // 8).view(torch.uint8)
        if fill is not None:
            raw.fill_(fill)
        scale = torch.full((EXPERTS, columns, depth // 32), 127, device="cuda", dtype=torch.uint8)
        values, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        scales, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
        raw = tensor.convert_layout(tensor.wrap_torch_tensor(raw.transpose(-2, -1), dtype=tensor.FP4), values, **options)
        scale = tensor.convert_layout(tensor.wrap_torch_tensor(scale.transpose(-2, -1)), scales, **scale_options)
        flex = self.ogs.FlexCtx(rhs_data=self.numerics.InFlexData())
        return raw, self.ogs.PrecisionConfig(weight_scale=scale, flex_ctx=flex)

    def routes(self, rows, node):
        logits = self.torch.full((rows, EXPERTS), -10.0, device="cuda", dtype=self.torch.bfloat16)
        logits.scatter_(1, self.torch.tensor(ids(rows, node), device="cuda"), 1.0)
        return self.routing.routing_torch(logits, TOP_K)  # The other takes powers of two alone.

    def up(self, x, weight, routes):
        w, precision = weight
        specs = self.ogs.FnSpecs("swiglu", self.swiglu.swiglu_fn, ("alpha", "limit"))
        act = self.ogs.FusedActivation(specs, (1.0, 10.0), 2)
        return lambda: self.ogs.matmul_ogs(
            x, w, None, routes[0], gather_indx=routes[1], precision_config=precision, fused_activation=act
        )

    def down(self, h, weight, routes):
        w, precision = weight
        keywords = {"scatter_indx": routes[2], "precision_config": precision, "gammas": routes[0].gate_scal}
        return lambda: self.ogs.matmul_ogs(h, w, None, routes[0], **keywords)

    def check(self):
        """With weights of one, and pairs that are alike, a row's outputs are the sum of a pair: its weights add up to one."""
        torch = self.torch
        h = torch.rand(1, WIDTH, device="cuda").bfloat16().expand(8 * TOP_K, WIDTH).contiguous()
        found = self.down(h, self.weight(HIDDEN, WIDTH, 0x22), self.routes(8, 0))().float()
        off = (found / h[0].float().sum() - 1).abs().max().item()
        if not off < 0.01:
            raise RuntimeError(f"sums are off by {off}")


def triton(torch, library):
    library.check()
    for kernel, call, columns, depth in [
        ("experts_up", library.up, 2 * WIDTH, HIDDEN),
        ("experts_down", library.down, HIDDEN, WIDTH),
    ]:
        weight = library.weight(columns, depth)
        for rows in [8, 64]:
            inputs = rows if depth == HIDDEN else rows * TOP_K
            xs = [torch.randn(inputs, depth, device="cuda").bfloat16() for _ in range(NODES)]
            calls = [call(x, weight, library.routes(rows, node)) for node, x in enumerate(xs)]
            yield "triton_kernels' matmul_ogs", kernel, shape("Mxfp4", rows), calls


def suites(torch):
    """Those whose libraries are on the path."""
    found = []
    for folder in map(pathlib.Path, sys.path):
        if list(folder.glob("vllm/_moe_C*.so")):
            torch.ops.load_library(str(next(folder.glob("vllm/_moe_C*.so"))))
            found.append((marlin,))
            break
    sys.path += [str(folder / "vllm/third_party") for folder in map(pathlib.Path, sys.path)]
    try:
        found.append((triton, Triton(torch)))
    except Exception as error:  # a library that does not fit raises what it likes
        print(f"rivals: no triton_kernels: {type(error).__name__}: {error}", file=sys.stderr)
    return found
