"""Latent attention's kernels against their limits: shapes of Kimi K2 and GLM 5, 512 + 64 numbers a token.

A limit is the longer of two times: reading what has to be read once at a copy's bandwidth, and its products at the rate
of torch's own in bf16. Against twins in torch sizes are small: those hold every score of every head in fp32.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from evalsvc.kernels.fp8 import absmax_scale, quantize_e4m3
from evalsvc.kernels.index_ranks import choose_keys, choose_keys_torch, highest
from evalsvc.kernels.latent_decode import latent_decode, latent_decode_torch
from evalsvc.kernels.latent_prefill import latent_prefill, latent_prefill_torch
from evalsvc.kernels.page_table import PAGE, PageTable

from .common import Row
from .gpu_clock import Bench

TFLOPS = 790  # that torch's bf16 product reaches on an H200
TOKENS = 2**19  # keys of a batch in decode: 576 MiB of bf16 pages


@dataclass(frozen=True)
class Sizes:
    """What is measured; a dry run's are tiny."""

    rank: int = 512
    rope: int = 64
    nope: int = 128
    width: int = 128
    heads: tuple[int, ...] = (64, 128)
    index_heads: int = 64
    index_dim: int = 128
    topk: int = 2048
    long: int = 131072
    middle: int = 32768
    short: int = 8192
    chunk: int = 512
    batch: int = TOKENS


TINY = Sizes(32, 16, 16, 16, (2,), 2, 16, 4, 56, 40, 20, 8, 56)


def latents(bench: Bench) -> Iterator[Row]:
    """Decode, decode over lists, prefill, and the choice of keys."""
    sizes = TINY if bench.dry else Sizes()
    for heads in sizes.heads:
        for context in (sizes.short, sizes.long):
            yield from _decode(bench, sizes, heads, context)
    yield _listed(bench, sizes)
    yield from _prefill(bench, sizes)
    yield from _choice(bench, sizes)


def _table(bench: Bench, requests: int, context: int, queries: int = 1) -> PageTable:
    """Requests of so many keys, over pages in no order."""
    each = -(-context // PAGE)
    order = torch.randperm(requests * each).tolist()
    pages = [order[i * each : (i + 1) * each] for i in range(requests)]
    return PageTable.of(pages, [context] * requests, [queries] * requests, bench.device)


def _numbers(bench: Bench, *shape: int) -> Tensor:
    return torch.randn(shape, device=bench.device).bfloat16()


def _share(bench: Bench, what: str, took_ms: float, read: int, flops: float) -> Row:
    """How near a time is to its limit."""
    reading, computing = read / (bench.bandwidth * 1e9), flops / (TFLOPS * 1e9)
    limit = max(reading, computing)
    note = f"{took_ms:.3g} ms; reading {reading:.3g}, products {computing:.3g}"
    return bench.row(what, 100 * limit / took_ms, "% of its limit", note=note)


def _over_twin(bench: Bench, what: str, kernel: Callable[[], object], twin: Callable[[], object]) -> Row:
    took, theirs = bench.median_ms(kernel, graph=False), bench.median_ms(twin, graph=False)
    return bench.row(f"{what}, over its twin", theirs / took, "x", 1, note=f"{took:.3g} ms against {theirs:.3g}")


def _decode(bench: Bench, sizes: Sizes, heads: int, context: int) -> Iterator[Row]:
    requests = max(1, sizes.batch // context)
    table = _table(bench, requests, context)
    slots = table.pages.numel() * PAGE
    latent, rope = _numbers(bench, slots, sizes.rank), _numbers(bench, slots, sizes.rope)
    query = _numbers(bench, requests, heads, sizes.rank), _numbers(bench, requests, heads, sizes.rope)
    tiles = latent.unflatten(-1, (4, -1))
    scale = absmax_scale(tiles, dim=-1)
    codes = quantize_e4m3(tiles, scale).flatten(-2), rope, scale.squeeze(-1)
    flops = 2 * slots * heads * (2 * sizes.rank + sizes.rope)
    for name, held in {"bf16": (latent, rope, None), "latent128": codes}.items():
        once = partial(latent_decode, *query, *held, table, sizes.rank**-0.5)
        read = sum(t.numel() * t.element_size() for t in held if t is not None)
        what = f"latent_decode, {heads} heads, {name}, {requests} requests of {context} keys"
        yield _share(bench, what, bench.median_ms(once), read, flops)
        if context == sizes.short and heads == sizes.heads[0]:
            yield _over_twin(bench, what, once, partial(latent_decode_torch, *once.args))


def _listed(bench: Bench, sizes: Sizes) -> Row:
    """A chunk's queries, each over a list of its own, as GLM attends in both stages."""
    heads, chunk = sizes.heads[0], sizes.chunk
    table = _table(bench, 1, sizes.long, chunk).by_query
    slots = -(-sizes.long // PAGE) * PAGE
    latent, rope = _numbers(bench, slots, sizes.rank), _numbers(bench, slots, sizes.rope)
    query = _numbers(bench, chunk, heads, sizes.rank), _numbers(bench, chunk, heads, sizes.rope)
    drawn = torch.rand(chunk, sizes.long - chunk, device=bench.device).topk(sizes.topk, dim=-1).indices
    chosen = drawn.sort(dim=-1).values.int()
    once = partial(latent_decode, *query, latent, rope, None, table, sizes.rank**-0.5, None, chosen)
    read, flops = (
        2 * chosen.numel() * (sizes.rank + sizes.rope),
        2 * chosen.numel() * heads * (2 * sizes.rank + sizes.rope),
    )
    what = f"latent_decode, {heads} heads, {chunk} queries' lists of {sizes.topk} of {sizes.long} keys"
    return _share(bench, what, bench.median_ms(once), read, flops)


def _prefill(bench: Bench, sizes: Sizes) -> Iterator[Row]:
    heads = sizes.heads[0]
    for queries, context, twin in ((4 * sizes.chunk, sizes.middle, False), (sizes.chunk // 2, sizes.short, True)):
        table = _table(bench, 1, context, queries)
        slots = table.pages.numel() * PAGE
        latent, rope = _numbers(bench, slots, sizes.rank), _numbers(bench, slots, sizes.rope)
        query = _numbers(bench, queries, heads, sizes.nope), _numbers(bench, queries, heads, sizes.rope)
        up = _numbers(bench, heads, sizes.nope + sizes.width, sizes.rank) * 0.05
        given = (*query, latent, rope, None, up, table, sizes.nope**-0.5)
        what = f"latent_prefill, {heads} heads, {queries} queries at {context} keys"
        if twin:
            yield _over_twin(bench, what, partial(latent_prefill, *given), partial(latent_prefill_torch, *given))
            continue
        expanded = 2 * slots * up.numel()
        seen = queries * (context - queries / 2)
        flops = expanded + 2 * seen * heads * (sizes.nope + sizes.rope + sizes.width)
        took = bench.median_ms(partial(latent_prefill, *given))
        yield _share(bench, what, took, 2 * slots * (sizes.rank + sizes.rope), flops)


def _choice(bench: Bench, sizes: Sizes) -> Iterator[Row]:
    """Ranks and the choice among them; the choice alone is torch.topk and a sort."""
    cases = (
        (max(1, sizes.batch // sizes.long), 1, sizes.long),
        (1, sizes.chunk, sizes.long),
        (1, sizes.chunk // 4, sizes.middle),
    )
    for requests, queries, context in cases:
        table = _table(bench, requests, context, queries)
        slots, rows = table.pages.numel() * PAGE, requests * queries
        keys = _numbers(bench, slots, sizes.index_dim)
        asking = _numbers(bench, rows, sizes.index_heads, sizes.index_dim)
        weights = torch.rand(rows, sizes.index_heads, device=bench.device)
        given = (asking, weights, keys, None, table, sizes.index_dim**-0.5, sizes.topk)
        what = f"index_ranks, {rows} queries of {context} keys"
        if context == sizes.middle:
            yield _over_twin(bench, what, partial(choose_keys, *given), partial(choose_keys_torch, *given))
            continue
        ranks = torch.randint(-(2**62), 2**62, (rows, table.pages.shape[1] * PAGE), device=bench.device)
        both, choice = (
            bench.median_ms(partial(choose_keys, *given)),
            bench.median_ms(partial(highest, ranks, sizes.topk)),
        )
        flops = 2 * rows * context * sizes.index_heads * sizes.index_dim
        yield _share(bench, f"{what}: ranks alone", both - choice, 2 * keys.numel() + 8 * ranks.numel(), flops)
        yield bench.row(
            f"{what}: torch.topk's share", 100 * choice / both, "% of the choice", note=f"{choice:.3g} ms of {both:.3g}"
        )
