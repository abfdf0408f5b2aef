"""Every launcher with real arguments, up to the launch itself: bound by Triton, specialised, compiled for sm_90.

The interpreter takes no part in that, and a kernel compiled from a signature is given no arguments. A driver stands for
a GPU; Triton makes constants of whole numbers that are 1, so sizes here are 1 where they can be.
"""

from functools import partial

import pytest
import torch

from evalsvc.kernels import index_ranks, linear_fp8
from evalsvc.kernels.index_ranks import choose_keys
from evalsvc.kernels.kv_write import write_tokens
from evalsvc.kernels.latent_decode import latent_decode
from evalsvc.kernels.latent_prefill import latent_prefill
from evalsvc.kernels.linear_fp8 import linear_fp8_w8a16
from evalsvc.kernels.linear_int4 import linear_int4
from evalsvc.kernels.linear_int8 import linear_int8
from evalsvc.kernels.linear_nvfp4 import linear_nvfp4
from evalsvc.kernels.page_table import PAGE, Guarding, PageTable
from evalsvc.kernels.paged_decode import SPLIT, paged_decode
from evalsvc.kernels.paged_prefill import paged_prefill

triton = pytest.importorskip("triton")
MOST_IN_Y_AND_Z = 65535
INPUTS = 2048  # cut into parts, where rows are few


class Driver:
    """Of a GPU that is not here: no launch gets as far as asking it for more."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that were compiled and would now be launched."""
    names, real = [], triton.runtime.jit.JITFunction.run

    def run(kernel, *args, grid, warmup, **options):
        assert all(1 <= side <= MOST_IN_Y_AND_Z for side in grid[1:]), grid
        assert real(kernel, *args, grid=grid, warmup=True, **options).asm["cubin"][:4] == b"\x7fELF"
        names.append(kernel.__name__)

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", run)
    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(Driver())
    yield names
    triton.runtime.driver._active = before


def table(lengths: tuple[int, ...], counts: tuple[int, ...]) -> PageTable:
    first, pages = 0, []
    for length in lengths:
        pages.append(list(range(first, first - (-length // PAGE))))
        first += len(pages[-1])
    return PageTable.of(pages, list(lengths), list(counts))


def attention(kernel, kind, lengths=(3,), counts=(1,), window=None):
    """One head; keys and values as e4m3 with a scale a token and head, or in bf16."""
    held, slots = table(lengths, counts), PAGE * sum(-(-length // PAGE) for length in lengths)
    pages = torch.zeros(2, slots, 1, 64, dtype=kind)
    scales = (None, None) if kind == torch.bfloat16 else torch.ones(2, slots, 1)
    guarding = Guarding.over(torch.zeros(slots, 2, dtype=torch.int32), torch.zeros_like(held.pages))
    q = torch.zeros(sum(counts), 1, 64, dtype=torch.bfloat16)
    kernel(q, *pages, *scales, held, 1.0, window, None, None, guarding)


def writing(kind):
    pages = torch.zeros(2, PAGE, 1, 64, dtype=kind)
    scales = (None, None) if kind == torch.bfloat16 else torch.ones(2, PAGE, 1)
    new = torch.zeros(2, 1, 1, 64, dtype=torch.bfloat16)
    stamps = torch.zeros(PAGE, 2, dtype=torch.int32)
    write_tokens(*pages, *scales, torch.zeros(1, dtype=torch.long), *new, stamps, stamps[:1].clone())


def latents(kernel, kind, scale, counts=(1,), chosen=None):
    """One head over latents of 512 and rope keys of 64."""
    held, tiled = table((3,), counts), scale is not None and scale.ndim == 2
    latent = torch.zeros(PAGE, 512, dtype=kind)
    rope = torch.zeros(PAGE, 64, dtype=torch.bfloat16 if tiled else kind)
    guarding = Guarding.over(torch.zeros(PAGE, 2, dtype=torch.int32), torch.zeros_like(held.pages))
    number = torch.float32 if kind == torch.float32 else torch.bfloat16
    q, q_rope = (torch.zeros(sum(counts), 1, size, dtype=number) for size in (512, 64))
    if kernel is latent_decode:
        kernel(q, q_rope, latent, rope, scale, held, 1.0, guarding, chosen)
    else:
        up = torch.zeros(1, 256, 512, dtype=number)
        kernel(q[..., :128].contiguous(), q_rope, latent, rope, scale, up, held, 1.0, guarding)


def choosing(lengths, counts, heads=1, kind=torch.bfloat16):
    held, slots = table(lengths, counts), PAGE * sum(-(-length // PAGE) for length in lengths)
    keys, scale = torch.zeros(slots, 128, dtype=kind), None if kind == torch.bfloat16 else torch.ones(slots)
    q = torch.zeros(sum(counts), heads, 128, dtype=torch.bfloat16)
    guarding = Guarding.over(torch.zeros(slots, 2, dtype=torch.int32), torch.zeros_like(held.pages))
    choose_keys(q, torch.zeros(sum(counts), heads), keys, scale, held, 1.0, 4, guarding)


def product(kernel, *weights, rows=1, counts=None):
    counts = None if counts is None else torch.tensor(counts, dtype=torch.int32)
    kernel(torch.zeros(rows, INPUTS, dtype=torch.bfloat16), *weights, counts=counts)


def codes(kind, columns, out=1, experts=()):
    return torch.zeros(*experts, out, columns, dtype=kind)


BF16, E4M3, BYTES = torch.bfloat16, torch.float8_e4m3fn, torch.uint8
LAUNCHES = {
    "paged_decode, a page": (partial(attention, paged_decode, BF16, window=1), ["_attend"]),
    "paged_decode, splits": (partial(attention, paged_decode, E4M3, (SPLIT + 1,)), ["_attend", "_merge"]),
    "paged_decode, int8": (partial(attention, paged_decode, torch.int8), ["_attend"]),
    "paged_prefill": (partial(attention, paged_prefill, BF16, (3,), (3,)), ["_attend"]),
    "paged_prefill, e4m3": (partial(attention, paged_prefill, E4M3, (3,), (1,), window=1), ["_attend"]),
    "kv_write": (partial(writing, BF16), ["_write"]),
    "kv_write, e4m3": (partial(writing, E4M3), ["_write"]),
    "latent_decode": (partial(latents, latent_decode, BF16, None), ["_attend", "_merge"]),
    "latent_decode, listed": (
        partial(latents, latent_decode, E4M3, torch.ones(PAGE, 4), chosen=torch.zeros(1, 1, dtype=torch.int32)),
        ["_attend", "_merge"],
    ),
    "latent_prefill": (partial(latents, latent_prefill, BF16, None, (2,)), ["_expand", "_attend"]),
    "latent_prefill, one scale": (
        partial(latents, latent_prefill, E4M3, torch.tensor(1.0)),
        ["_expand", "_attend"],
    ),
    "index_ranks, one query": (partial(choosing, (3,), (1,)), ["_rank"]),
    "index_ranks, many": (partial(choosing, (3, 40, 16), (1, 9, 0), 64, E4M3), ["_rank"] * 3),
    "linear_int4": (
        partial(product, linear_int4, codes(torch.int32, INPUTS // 8), codes(BF16, 1)),
        ["_linear", "_add_parts"],
    ),
    "linear_int4, an expert": (
        partial(product, linear_int4, codes(torch.int32, INPUTS // 8, 1, (1,)), codes(BF16, 16, 1, (1,)), counts=[1]),
        ["_linear", "_add_parts"],
    ),
    "linear_int8": (partial(product, linear_int8, codes(torch.int8, INPUTS), codes(torch.float32, 1)), ["_linear"]),
    "linear_nvfp4": (
        partial(product, linear_nvfp4, codes(BYTES, INPUTS // 2), codes(E4M3, INPUTS // 16), torch.ones(1)),
        ["_linear", "_add_parts"],
    ),
    "linear_fp8": (
        partial(product, linear_fp8.linear_fp8, codes(E4M3, INPUTS), torch.ones(1, 1), "channel"),
        ["_round_tokens", "_linear", "_add_parts"],
    ),
    "linear_fp8, blocks": (
        partial(product, linear_fp8.linear_fp8, codes(E4M3, INPUTS), torch.ones(1, 16), "block", rows=17),
        ["_round_tokens", "_linear"],
    ),
    "linear_fp8, w8a16": (
        partial(product, linear_fp8_w8a16, codes(E4M3, INPUTS), torch.ones(1, 1), "channel"),
        ["_linear", "_add_parts"],
    ),
}


@pytest.mark.parametrize("case", LAUNCHES)
def test_what_is_launched_binds_and_compiles(launched, monkeypatch, case):
    monkeypatch.setattr(index_ranks, "_MOST_RANKS", 1)  # a launch for each tile: the second begins with tile 1
    monkeypatch.setattr(linear_fp8, "native", lambda device: True)
    launch, wanted = LAUNCHES[case]
    launch()
    assert launched == wanted


def test_a_grid_that_cuda_refuses_is_seen(launched):
    with pytest.raises(AssertionError, match="65536"):
        paged_decode_over(65536)


def paged_decode_over(kv_heads: int) -> None:
    """A launch with a program for each head of keys."""
    q = torch.zeros(1, kv_heads, 16, dtype=BF16)
    paged_decode(q, *torch.zeros(2, PAGE, kv_heads, 16, dtype=BF16), None, None, table((3,), (1,)), 1.0)
