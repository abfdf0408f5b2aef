"""Slots and experts behind the 2^31st number of a tensor are read and written where they are.

A request's pages are the last of a pool that is so large; the same numbers in a small pool give the same bits. Of what
nobody touches no memory is taken here.
"""

import pytest
import torch
from torch import Tensor

from evalsvc.kernels.index_ranks import choose_keys
from evalsvc.kernels.kv_write import write_tokens
from evalsvc.kernels.latent_decode import latent_decode
from evalsvc.kernels.latent_prefill import latent_prefill
from evalsvc.kernels.linear_fp8 import linear_fp8_w8a16
from evalsvc.kernels.linear_int8 import linear_int8
from evalsvc.kernels.page_table import PAGE, Guarding, PageTable
from evalsvc.kernels.paged_decode import paged_decode
from evalsvc.kernels.paged_prefill import paged_prefill

from .paging import DEVICE

pytest.importorskip("triton")
LENGTH, NUMBERS = 2 * PAGE + 3, 2**31
SMALL = 3 * PAGE


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def codes(*shape: int, kind: torch.dtype = torch.int8) -> Tensor:
    found = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(1))
    return (found.to(torch.int8) if kind == torch.int8 else (found / 10).to(kind)).to(DEVICE)


def at_the_end(small: Tensor, slots: int) -> Tensor:
    """The same rows as the last ones of so many."""
    large = torch.empty((slots, *small.shape[1:]), dtype=small.dtype, device=DEVICE)
    as_bytes, rows = (t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t for t in (large, small))
    as_bytes[slots - len(small) :] = rows
    return large


def tables(slots: int, queries: int) -> tuple[PageTable, PageTable]:
    """A request over the first three pages, and over the last three of so many slots."""
    last = slots // PAGE - 3
    rows = ([0, 2, 1], [last, last + 2, last + 1])
    return tuple(PageTable.of([pages], [LENGTH], [queries], DEVICE) for pages in rows)  # pyright: ignore[reportReturnType]


def slots_of(dim: int) -> int:
    """Slots of rows of so many numbers, the last three pages of which begin behind NUMBERS."""
    return NUMBERS // dim + SMALL


@pytest.mark.parametrize("queries", [1, 5])
def test_pages_of_keys_and_values(queries):
    pages, scale = codes(SMALL, 1, 64), numbers(SMALL, 1).abs()
    slots, q = slots_of(64), numbers(queries, 2, 64).bfloat16()
    kernel = paged_decode if queries == 1 else paged_prefill
    found = []
    for table, held, by in zip(
        tables(slots, queries), (pages, at_the_end(pages, slots)), (scale, at_the_end(scale, slots)), strict=True
    ):
        stamps = torch.zeros((len(held), 2), dtype=torch.int32, device=DEVICE)
        guarding = Guarding.over(stamps, torch.ones_like(table.pages))
        out = kernel(q, held, held, by, by, table, 0.01, None, None, None, guarding)
        found.append((out, guarding.first_bad().tolist()))
    assert torch.equal(found[0][0], found[1][0]) and found[0][0].isfinite().all()
    assert found[0][1] == found[1][1] == [1]


def test_writing_keys_and_values():
    slots = slots_of(64)
    new, stamp = numbers(2, 1, 1, 64).bfloat16(), torch.tensor([[7, 34]], dtype=torch.int32, device=DEVICE)
    found = []
    for count in (SMALL, slots):
        pages = torch.empty(count, 1, 64, dtype=torch.int8, device=DEVICE)
        scale = torch.empty(2, count, 1, device=DEVICE)
        stamps = torch.empty(count, 2, dtype=torch.int32, device=DEVICE)
        last = torch.tensor([count - 1], device=DEVICE)
        write_tokens(pages, pages, *scale, last, *new, stamps, stamp)
        found.append([pages[-1], *scale[:, -1], stamps[-1]])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)) and found[1][-1].tolist() == [7, 34]


@pytest.mark.parametrize("form", ["decode", "listed", "prefill"])
def test_pages_of_latents(form):
    latent, rope = codes(SMALL, 512, kind=torch.float8_e4m3fn), codes(SMALL, 64, kind=torch.float8_e4m3fn)
    slots, scale, heads = slots_of(512), torch.tensor(0.01, device=DEVICE), 2
    queries = 4 if form == "prefill" else 1
    q, q_rope = numbers(queries, heads, 512).bfloat16(), numbers(queries, heads, 64).bfloat16()
    up = numbers(heads, 64, 512).bfloat16()
    chosen = torch.tensor([[0, 5, 17, 33, 34]], dtype=torch.int32, device=DEVICE) if form == "listed" else None
    found = []
    for table, count in zip(tables(slots, queries), (SMALL, slots), strict=True):
        pages = at_the_end(latent, count), at_the_end(rope, count), scale
        if form == "prefill":
            found.append(latent_prefill(q[..., :32].contiguous(), q_rope, *pages, up, table, 0.05))
        else:
            found.append(latent_decode(q, q_rope, *pages, table, 0.05, None, chosen))
    assert torch.equal(*found) and found[0].isfinite().all()


@pytest.mark.parametrize("queries", [1, 5])
def test_pages_of_index_keys(queries):
    keys, scale, slots = codes(SMALL, 128, kind=torch.float8_e4m3fn), numbers(SMALL).abs(), slots_of(128)
    q, weights = numbers(queries, 2, 128).bfloat16(), numbers(queries, 2, seed=3).abs()
    found = [
        choose_keys(q, weights, at_the_end(keys, count), at_the_end(scale, count), table, 0.1, 6)
        for table, count in zip(tables(slots, queries), (SMALL, slots), strict=True)
    ]
    assert torch.equal(*found) and len(found[0][0].unique()) == 6


@pytest.mark.parametrize("kind", [torch.int8, pytest.param(torch.float8_e4m3fn, marks=pytest.mark.slow)])
def test_the_last_of_many_experts(kind):
    out, inputs = 64, 2**16
    experts = NUMBERS // (out * inputs) + 1
    own, scale = codes(1, out, inputs, kind=kind), numbers(1, out, 1).abs()
    x, kernel = numbers(1, inputs).bfloat16(), linear_int8 if kind == torch.int8 else linear_fp8_w8a16
    options = () if kind == torch.int8 else ("channel",)
    found = []
    for count in (1, experts):
        counts = torch.zeros(count, dtype=torch.int32, device=DEVICE)
        counts[-1] = 1
        found.append(kernel(x, at_the_end(own, count), at_the_end(scale, count), *options, counts=counts))
    assert torch.equal(*found) and found[0].isfinite().all()
