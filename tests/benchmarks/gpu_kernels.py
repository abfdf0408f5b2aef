"""Kernels alone: attention against the memory's speed, packed products against torch's bf16 product."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from evalsvc.engine.packed.fp8 import quantize_fp8, quantize_fp8_block
from evalsvc.engine.packed.int4 import quantize_int4
from evalsvc.engine.packed.nvfp4 import quantize_nvfp4_weight
from evalsvc.kernels.fp8 import absmax_scale, quantize_e4m3
from evalsvc.kernels.linear_fp8 import linear_fp8
from evalsvc.kernels.linear_int4 import linear_int4
from evalsvc.kernels.linear_nvfp4 import linear_nvfp4
from evalsvc.kernels.nvfp4 import global_divisor
from evalsvc.kernels.page_table import PAGE, PageTable
from evalsvc.kernels.paged_decode import paged_decode

from .common import Row
from .gpu_clock import Bench

HEADS, KV_HEADS, DIM = 32, 8, 128
CONTEXTS = (1024, 4096, 8192, 32768, 131072)
TOKENS = 2**19  # keys of a batch: 2 GiB of bf16 pages
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336))
ROWS = (1, 16, 64, 512)


def attention(bench: Bench) -> Iterator[Row]:
    """Time of one layer's decode attention against that of reading its pages once."""
    for context in (40,) if bench.dry else CONTEXTS:
        batch = 2 if bench.dry else max(1, TOKENS // context)
        per_request = -(-context // PAGE)
        order = torch.randperm(batch * per_request).tolist()
        pages = [order[i * per_request : (i + 1) * per_request] for i in range(batch)]
        table = PageTable.of(pages, [context] * batch, [1] * batch, bench.device)
        slots = batch * per_request * PAGE
        q = torch.randn(batch, HEADS, DIM, device=bench.device).bfloat16()
        k, v = (torch.randn(slots, KV_HEADS, DIM, device=bench.device).bfloat16() for _ in range(2))
        k_scale, v_scale = (absmax_scale(part, dim=-1) for part in (k, v))
        narrow = [quantize_e4m3(part, scale) for part, scale in ((k, k_scale), (v, v_scale))]
        forms = {
            "bf16": (k, v, None, None),
            "fp8": (*narrow, k_scale.squeeze(-1), v_scale.squeeze(-1)),
        }
        times = {}
        for name, held in forms.items():
            bytes_read = sum(t.numel() * t.element_size() for t in held if t is not None)
            times[name] = bench.median_ms(partial(paged_decode, q, *held, table, DIM**-0.5))
            share = 100 * bytes_read / (times[name] * 1e-3) / (bench.bandwidth * 1e12)
            note = f"{batch} requests; {times[name]:.3g} ms for {bytes_read / 2**30:.2f} GiB"
            yield bench.row(f"{name} pages, {context} keys", share, "% of a copy's bandwidth", 80, note=note)
        ratio = times["bf16"] / times["fp8"]
        yield bench.row(f"fp8 over bf16, {context} keys", ratio, "x", 1.7 if context == 32768 else None)


def linear(bench: Bench) -> Iterator[Row]:
    """Packed products against torch.matmul in bf16, and whether a row has the same bits in any company."""
    for out, inputs in ((64, 256),) if bench.dry else WEIGHTS:
        weight = torch.randn(out, inputs, device=bench.device) * 0.02
        plain = weight.bfloat16()
        with torch.device(bench.device):
            int4 = quantize_int4(weight, 128, True)
            fp8, block = quantize_fp8(weight), quantize_fp8_block(weight)
            nvfp4 = quantize_nvfp4_weight(weight, global_divisor(weight.abs().amax())[None])
        forms = {
            "int4": lambda x, w=int4: linear_int4(x, w.packed, w.scale, w.offset),
            "fp8": lambda x, w=fp8: linear_fp8(x, w.codes, w.scale, "channel"),
            "fp8:block128": lambda x, w=block: linear_fp8(x, w.codes, w.scale, "block"),
            "nvfp4:w4a16": lambda x, w=nvfp4: linear_nvfp4(x, w.codes, w.scale, w.divisor),
        }
        company = torch.randn(64, inputs, device=bench.device).bfloat16()
        for name, product in forms.items():
            many, one = product(company), product(company[:1])
            if not bench.dry:  # the interpreter sums each tile in an order of its own
                yield _same_bits(f"{name}, {out} x {inputs}", many, one)
        for m in ROWS[:2] if bench.dry else ROWS:
            x = torch.randn(m, inputs, device=bench.device).bfloat16()
            base = bench.median_ms(partial(torch.matmul, x, plain.T))
            for name, product in forms.items():
                took = bench.median_ms(partial(product, x))
                aim = 3.0 if (name, m) == ("int4", 1) else None
                note = f"{1000 * took:.3g} us against {1000 * base:.3g}"
                yield bench.row(f"{name} over bf16, {out} x {inputs}, {m} rows", base / took, "x", aim, note=note)


def _same_bits(what: str, many: Tensor, one: Tensor) -> Row:
    same = torch.equal(many[:1], one)
    return Row(f"{what}: a row alone and among 64", "same bits" if same else "other bits", "same bits", same)
