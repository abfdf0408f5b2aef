"""Causal grouped-query attention of many queries a request over pages, whatever of its keys was there before.

A request's queries are its last tokens: a whole prompt, a chunk of it, or what follows a prefix that was found. For a
query q at position t the formula is that of `evalsvc.kernels.paged_decode`.

Tiles of queries begin anew with each request; a row is a query and one of the heads that share a head of keys. A row
takes keys in blocks at fixed positions, in order, and one that it does not see adds exactly zero: so where its tile
begins, how a prompt was cut and what is beside it leave every bit of a result as it is.

Where stamps are given, each slot's tag and position are compared by the first tile that reads it, in the program of its
first head.
"""

from typing import Any

import torch
from torch import Tensor

from .dispatch import ran
from .jit import constexpr, jit, tl
from .page_table import PAGE, Guarding, PageTable, check_launch
from .paged_launch import constants_of, head_sides, is_long, pointers, switches
from .paged_parts import (
    BY_TOKEN,
    E4M3,
    E4M3_BYTES,
    FP32,
    INT8,
    MASKED,
    attend_block,
    finish,
    read_queries,
    report,
    scale_sums,
    sound_slots,
)
from .paged_reference import attend_request

_MOST_ROWS = 64
_PAGE, _MASKED, _NONE = constexpr(PAGE), constexpr(MASKED), constexpr(2147483647)


@jit
def _attend(
    q, k, v, k_scale, v_scale, pages, lengths, sinks, stamps, expected, faults, sound, out,
    starts, tile_requests, tile_firsts, columns, kv_heads, blocks, window, scaling, softcap,
    GROUP: constexpr, ROWS: constexpr, KEYS: constexpr, TILE: constexpr,
    DIM: constexpr, D: constexpr, D_REST: constexpr, V_DIM: constexpr, V: constexpr, V_REST: constexpr,
    KIND: constexpr, SCALE: constexpr, WIDE: constexpr, HALF: constexpr, FP32: constexpr,
    WINDOWED: constexpr, CAPPED: constexpr, SINKS: constexpr, GUARDED: constexpr,
):  # fmt: skip
    """A tile of TILE queries, with heads that share a head of keys; more of them than ROWS are in `blocks` programs."""
    tile, part = tl.program_id(0), tl.program_id(1)
    request, before = tl.load(tile_requests + tile), tl.load(tile_firsts + tile)
    length, start_row = tl.load(lengths + request), tl.load(starts + request)
    count = tl.load(starts + request + 1) - start_row
    head, row = part // blocks, part % blocks * ROWS + tl.arange(0, ROWS)
    query_index = before + row // GROUP
    mine = (row < TILE * GROUP) & (query_index < count)
    place = length - count + query_index
    first_place = length - count + before
    stop = tl.minimum(first_place + TILE, length)
    oldest = tl.maximum(first_place + 1 - window, 0) if WINDOWED else 0
    heads = head * GROUP + row % GROUP
    lines = (start_row + query_index).to(tl.int64) * (kv_heads * GROUP) + heads
    query, query_rest, unit = read_queries(q, lines, mine, DIM, D, D_REST, WIDE, HALF)
    peak, total = tl.full((ROWS,), _MASKED, tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, V), tl.float32)
    acc_rest = tl.zeros((ROWS, V_REST if V_REST else 16), tl.float32)
    worst, counted = tl.full((KEYS,), _NONE, tl.int32), tl.zeros((KEYS,), tl.int32)
    fresh = tl.where(before == 0, 0, first_place)
    for start in range(oldest // KEYS * KEYS, stop, KEYS):
        position = start + tl.arange(0, KEYS)
        loaded = (position < stop) & (position >= oldest)
        seen = position[None, :] <= place[:, None]
        if WINDOWED:
            seen = seen & (position[None, :] > place[:, None] - window)
        cell = request.to(tl.int64) * columns + position // _PAGE
        slot = tl.load(pages + cell, mask=loaded, other=0).to(tl.int64) * _PAGE + position % _PAGE
        if GUARDED:
            compared = loaded & (position * 0 == part) & (position >= fresh)
            same = sound_slots(stamps, expected + cell, slot, position, compared)
            counted += same.to(tl.int32)
            worst = tl.minimum(worst, tl.where(same == compared, _NONE, position))
        peak, total, acc, acc_rest = attend_block(
            k, v, k_scale, v_scale, slot, loaded, seen & loaded[None, :], head, kv_heads, query, query_rest, unit,
            scaling, softcap, peak, total, acc, acc_rest,
            DIM, D, D_REST, V_DIM, V, V_REST, KIND, SCALE, WIDE, HALF, CAPPED,
        )  # fmt: skip
    if GUARDED:
        report(faults + request, sound + request, worst, counted, part == 0)
    acc = scale_sums(acc, v_scale, head, SCALE)
    acc_rest = scale_sums(acc_rest, v_scale, head, SCALE)
    finish(out, sinks, lines, heads, mine, peak, total, acc, acc_rest, V_DIM, V, V_REST, SINKS, FP32)


def paged_prefill(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    table: PageTable,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    guarding: Guarding | None = None,
) -> Tensor:
    """Attention of each request's queries, their own keys the last of its keys, over one layer's pages.

    Args:
        q: fp32 or bf16, request after request. Shape: (tokens, heads, head_dim).
        k_pages: As in `paged_decode`, with all that follows; a request may have any number of queries.

    Returns:
        Shape: (tokens, heads, v_dim), dtype of `q`.

    Raises:
        CapabilityError: What is not served, named.
    """
    check_launch("paged_prefill", table, q, k_pages, v_pages, k_scale, v_scale, window, softcap, sinks, guarding)
    ran("paged_prefill.triton")
    kv_heads, v_dim = v_pages.shape[1:]
    out = q.new_empty((*q.shape[:2], v_dim))
    constants = constants_of(q, k_pages, v_pages, k_scale, sizes)
    requests, firsts = table.tiles(constants["TILE"])
    blocks = -(-constants["GROUP"] // constants["ROWS"])
    if len(requests) == 0:
        return out
    _attend[(len(requests), kv_heads * blocks)](
        *pointers(q, k_pages, v_pages, k_scale, v_scale, table, sinks, guarding, out),
        table.starts, requests, firsts, table.pages.shape[1], kv_heads, blocks, window or 0, scaling, softcap or 1.0,
        **constants, **switches(window, softcap, sinks, guarding), **_options(constants),
    )  # fmt: skip
    return out


def paged_prefill_torch(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    table: PageTable,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    guarding: Guarding | None = None,
) -> Tensor:
    """As `paged_prefill`, request by request in torch: what the kernel is held against."""
    check_launch("paged_prefill", table, q, k_pages, v_pages, k_scale, v_scale, window, softcap, sinks, guarding)
    ran("paged_prefill.torch")
    if guarding is not None:
        guarding.compare(table, window)
    pages = (k_pages, v_pages, k_scale, v_scale)
    split = q.split(list(table.counts))
    rows = [
        attend_request(mine, *pages, table.slots(i), scaling, window, softcap, sinks)
        for i, mine in enumerate(split)
        if len(mine)
    ]
    return torch.cat(rows) if rows else q.new_empty((*q.shape[:2], v_pages.shape[2]))


def sizes(group: int, dim: int, v_dim: int, kind: int, wide: bool, fp8: bool) -> dict[str, int]:
    """Sides of tiles. Products in fp32 have no tensor cores: their tiles are small, to stay in registers.

    So are those of long heads held as codes, which are decoded in registers: fewer keys at once where tensor cores take
    64 rows, fewer rows where they take 16.
    """
    sides = head_sides(dim, v_dim)
    rows, keys = _MOST_ROWS, 32
    if wide:
        rows, keys = 16, 32 if kind == FP32 and sides["V"] > 128 else 16
    elif kind in (E4M3, E4M3_BYTES, INT8) and is_long(sides):
        rows, keys = (rows, 16) if fp8 else (rows // 2, keys)
    elif kind == INT8 and v_dim > 64 and not fp8:
        keys = 16
    return sides | {"GROUP": group, "ROWS": rows, "KEYS": keys, "TILE": max(rows // group, 1)}


def _options(constants: dict[str, Any]) -> dict[str, int]:
    """Warps and stages that spill nothing: with too many warps the assembler holds itself to too few registers."""
    kind, by_token, long = constants["KIND"], constants["SCALE"] == BY_TOKEN, is_long(constants)
    if constants["WIDE"]:
        if constants["KEYS"] == 32:
            return {"num_warps": 8, "num_stages": 1}
        warps = 2 if kind == FP32 and constants["DIM"] == 128 else 4  # with four Triton 3.6 spills 8 bytes
        pipelined = kind == FP32 and constants["FP32"]
        return {"num_warps": warps, "num_stages": (2 if constants["V_DIM"] <= 64 else 3) if pipelined else 1}
    if kind == E4M3 and by_token and not long:
        return {"num_warps": 8, "num_stages": 2}  # four warps spill on sm_90, three stages on sm_100
    if kind == INT8:
        few = 64 < constants["V_DIM"] <= 128 and (long or constants["KEYS"] == 32)
    elif kind == E4M3_BYTES:
        few = by_token and constants["DIM"] <= 64
    else:
        few = not long
    return {"num_warps": 4 if few else 8, "num_stages": 3}


def signatures() -> list[Any]:
    """All that can be chosen, for compiling without a GPU: `evalsvc.kernels.compiling.Signature`."""
    from .paged_cases import case_signatures, cases

    tables: dict[str, str] = dict.fromkeys(("starts", "tile_requests", "tile_firsts"), "*i32")
    numbers = dict.fromkeys(("columns", "kv_heads", "window"), "i32") | {"scaling": "fp32", "softcap": "fp32"}
    some = cases(tiles_by_group=False)
    return case_signatures("paged_prefill", _attend, some, sizes, _options, tables, numbers)
