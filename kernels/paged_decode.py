"""Grouped-query attention of one query a request over pages, split along the sequence.

For a request's query q at its last position t, over keys t - window < s <= t:

    S_s = scaling * (q . k_s) * k_scale_s                with a soft cap:   S = cap * tanh(S / cap)
    out = (sum_s exp(S_s - m) v_scale_s v_s) / (sum_s exp(S_s - m) + exp(sink - m)),    m = max(S, sink)

Keys are taken in blocks, and blocks in splits of SPLIT keys at fixed positions, each with its own m and sums; a second
kernel merges the splits in order. So a request's result has the same bits whatever is beside it: neighbours decide how
many programs run, never in what order a request's keys are summed.

Scores, exponentials and sums are fp32. With bf16 queries and pages narrower than fp32 the products are of bf16 numbers,
which is exact, and the weights are rounded to bf16 before they multiply values.

Where stamps are given, each slot's tag and position are compared with what the request expects, by the program of its
first head: `evalsvc.kernels.stamps`.
"""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from .dispatch import ran
from .jit import constexpr, jit, tl, to_bf16
from .page_table import PAGE, Guarding, PageTable, check_launch, refuse
from .paged_launch import constants_of, head_sides, is_long, pointers, switches
from .paged_parts import (
    BF16,
    BY_TOKEN,
    FP32,
    LOG2_E,
    MASKED,
    attend_block,
    finish,
    read_queries,
    report,
    scale_sums,
    sound_slots,
    write_rows,
)
from .paged_reference import attend_request

SPLIT = 512
_PAGE, _LOG2_E, _MASKED = constexpr(PAGE), constexpr(LOG2_E), constexpr(MASKED)
_NONE = constexpr(2147483647)


@jit
def _attend(
    q, k, v, k_scale, v_scale, pages, lengths, sinks, stamps, expected, faults, sound, out, sums, peaks, totals,
    columns, kv_heads, blocks, splits, window, scaling, softcap,
    GROUP: constexpr, ROWS: constexpr, KEYS: constexpr, SPLIT: constexpr,
    DIM: constexpr, D: constexpr, D_REST: constexpr, V_DIM: constexpr, V: constexpr, V_REST: constexpr,
    KIND: constexpr, SCALE: constexpr, WIDE: constexpr, HALF: constexpr, FP32: constexpr,
    WINDOWED: constexpr, CAPPED: constexpr, SINKS: constexpr, GUARDED: constexpr, WHOLE: constexpr,
):  # fmt: skip
    """A split of a request, for queries that share a head of keys. WHOLE: there is no other split.

    Rows of more queries than ROWS are in `blocks` programs.
    """
    request, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    head, row = part // blocks, part % blocks * ROWS + tl.arange(0, ROWS)
    mine = row < GROUP
    length = tl.load(lengths + request)
    oldest = tl.maximum(length - window, 0) if WINDOWED else 0
    stop = tl.minimum((split + 1) * SPLIT, length)
    first = tl.maximum(split * SPLIT, oldest // KEYS * KEYS)
    if first < stop:
        lines = (request * kv_heads + head).to(tl.int64) * GROUP + row
        query, query_rest, unit = read_queries(q, lines, mine, DIM, D, D_REST, WIDE, HALF)
        peak, total = tl.full((ROWS,), _MASKED, tl.float32), tl.zeros((ROWS,), tl.float32)
        acc = tl.zeros((ROWS, V), tl.float32)
        acc_rest = tl.zeros((ROWS, V_REST if V_REST else 16), tl.float32)
        worst, counted = tl.full((KEYS,), _NONE, tl.int32), tl.zeros((KEYS,), tl.int32)
        for start in range(first, stop, KEYS):
            position = start + tl.arange(0, KEYS)
            seen = (position < stop) & (position >= oldest)
            cell = request.to(tl.int64) * columns + position // _PAGE
            slot = tl.load(pages + cell, mask=seen, other=0).to(tl.int64) * _PAGE + position % _PAGE
            if GUARDED:
                compared = seen & (position * 0 == part)
                same = sound_slots(stamps, expected + cell, slot, position, compared)
                counted += same.to(tl.int32)
                worst = tl.minimum(worst, tl.where(same == compared, _NONE, position))
            peak, total, acc, acc_rest = attend_block(
                k, v, k_scale, v_scale, slot, seen, seen[None, :], head, kv_heads, query, query_rest, unit,
                scaling, softcap, peak, total, acc, acc_rest,
                DIM, D, D_REST, V_DIM, V, V_REST, KIND, SCALE, WIDE, HALF, CAPPED,
            )  # fmt: skip
        if GUARDED:
            report(faults + request, sound + request, worst, counted, part == 0)
        acc = scale_sums(acc, v_scale, head, SCALE)
        if V_REST:
            acc_rest = scale_sums(acc_rest, v_scale, head, SCALE)
        if WHOLE:
            heads = head * GROUP + row
            finish(out, sinks, lines, heads, mine, peak, total, acc, acc_rest, V_DIM, V, V_REST, SINKS, FP32)
        else:
            cells = ((request * splits + split).to(tl.int64) * kv_heads + head) * GROUP + row
            tl.store(peaks + cells, peak, mask=mine)
            tl.store(totals + cells, total, mask=mine)
            write_rows(sums, cells * V_DIM, mine, 0, acc, V_DIM, V, True)
            if V_REST:
                write_rows(sums, cells * V_DIM, mine, V, acc_rest, V_DIM, V_REST, True)


@jit
def _merge(
    sums, peaks, totals, lengths, sinks, out, heads, splits, window,
    SPLIT: constexpr, MERGED: constexpr, V_DIM: constexpr, V: constexpr,
    FP32: constexpr, WINDOWED: constexpr, SINKS: constexpr,
):  # fmt: skip
    """The splits of a request and a head, in order."""
    request, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    first = tl.maximum(length - window, 0) // SPLIT if WINDOWED else 0
    stop = (length + SPLIT - 1) // SPLIT
    at, one = tl.arange(0, V), tl.arange(0, 1)
    highest = tl.full((1,), _MASKED, tl.float32)
    for start in range(first, stop, MERGED):
        split = start + tl.arange(0, MERGED)
        cells = (request * splits + split).to(tl.int64) * heads + head
        highest = tl.maximum(highest, tl.max(tl.load(peaks + cells, mask=split < stop, other=_MASKED), 0))
    sink = highest
    if SINKS:
        sink = tl.load(sinks + head + one).to(tl.float32) * _LOG2_E
        highest = tl.maximum(highest, sink)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((V,), tl.float32)
    for start in range(first, stop, MERGED):
        split = start + tl.arange(0, MERGED)
        cells = (request * splits + split).to(tl.int64) * heads + head
        there = split < stop
        weight = tl.where(there, tl.exp2(tl.load(peaks + cells, mask=there, other=_MASKED) - highest), 0.0)
        total += tl.sum(weight * tl.load(totals + cells, mask=there, other=0.0), 0)
        mask = there[:, None] & (at < V_DIM)[None, :]
        part = tl.load(sums + cells[:, None] * V_DIM + at[None, :], mask=mask, other=0.0)
        acc += tl.sum(weight[:, None] * part, 0)
    if SINKS:
        total += tl.exp2(sink - highest)
    done = acc / total
    done = done if FP32 else to_bf16(done)
    tl.store(out + (request * heads + head).to(tl.int64) * V_DIM + at, done, mask=at < V_DIM)


def paged_decode(
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
    """Attention of one query a request over one layer's pages.

    Args:
        q: fp32 or bf16. Shape: (requests, heads, head_dim).
        k_pages: fp32, bf16, float8_e4m3fn or int8. Shape: (slots, kv_heads, head_dim).
        v_pages: Alike. Shape: (slots, kv_heads, v_dim).
        k_scale: None, scalar, or shape (kv_heads,) or (slots, kv_heads); fp32. `v_scale` alike.
        table: One query a request.
        scaling: Softmax scale.
        window: Keys that a query reads, its own the last; None: all.
        softcap: Bound that scores approach, above 0; None: no bound.
        sinks: Shape: (heads,); None: no sinks.
        guarding: Stamps to compare, and where findings go; None: nothing is compared.

    Returns:
        Shape: (requests, heads, v_dim), dtype of `q`.

    Raises:
        CapabilityError: What is not served, named.
    """
    _check(table, q, k_pages, v_pages, k_scale, v_scale, window, softcap, sinks, guarding)
    ran("paged_decode.triton")
    requests, heads = q.shape[:2]
    kv_heads, v_dim = v_pages.shape[1:]
    constants = constants_of(q, k_pages, v_pages, k_scale, sizes)
    columns = table.pages.shape[1]
    splits = -(-columns * PAGE // SPLIT)
    blocks = -(-constants["GROUP"] // constants["ROWS"])
    out = q.new_empty((requests, heads, v_dim))
    sums, cells = q.new_empty(0, dtype=torch.float32), q.new_empty((2, 0), dtype=torch.float32)
    if splits > 1:
        sums = torch.empty((requests, splits, heads, v_dim), dtype=torch.float32, device=q.device)
        cells = torch.empty((2, requests, splits, heads), dtype=torch.float32, device=q.device)
    _attend[(requests, kv_heads * blocks, splits)](
        *pointers(q, k_pages, v_pages, k_scale, v_scale, table, sinks, guarding, out),
        sums, cells[0], cells[1], columns, kv_heads, blocks, splits, window or 0, scaling, softcap or 1.0,
        **constants, **switches(window, softcap, sinks, guarding), SPLIT=SPLIT, WHOLE=splits == 1,
        **_options(constants),
    )  # fmt: skip
    if splits > 1:
        merge_splits(sums, cells[0], cells[1], table.lengths, out, window, sinks)
    return out


def merge_splits(
    sums: Tensor,
    peaks: Tensor,
    totals: Tensor,
    lengths: Tensor,
    out: Tensor,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Merges what splits of SPLIT keys left.

    Args:
        sums: Weighed values, fp32. Shape: (requests, splits, heads, v_dim).
        peaks: Largest scores, of base 2. Shape: (requests, splits, heads). `totals` alike: sums of weights.
        lengths: Keys of each request. Shape: (requests,).
        out: Written. Shape: (requests, heads, v_dim).
        window: As in `paged_decode`. `sinks` alike.
    """
    requests, splits, heads, v_dim = sums.shape
    _merge[(requests, heads)](
        sums, peaks, totals, lengths, out if sinks is None else sinks, out, heads, splits, window or 0,
        SPLIT=SPLIT, MERGED=_merged(v_dim), V_DIM=v_dim, V=1 << (v_dim - 1).bit_length(),
        FP32=out.dtype == torch.float32, WINDOWED=window is not None, SINKS=sinks is not None,
    )  # fmt: skip


def paged_decode_torch(
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
    """As `paged_decode`, request by request in torch: what the kernel is held against."""
    _check(table, q, k_pages, v_pages, k_scale, v_scale, window, softcap, sinks, guarding)
    ran("paged_decode.torch")
    if guarding is not None:
        guarding.compare(table, window)
    pages = (k_pages, v_pages, k_scale, v_scale)
    rows = [
        attend_request(q[i : i + 1], *pages, table.slots(i), scaling, window, softcap, sinks) for i in range(len(q))
    ]
    return torch.cat(rows)


def _check(table: PageTable, *rest: Any) -> None:
    check_launch("paged_decode", table, *rest)
    refuse("paged_decode", {"a request has more than one query, or none: paged_prefill serves it": not table.decodes})


def sizes(group: int, dim: int, v_dim: int, kind: int, wide: bool, fp8: bool) -> dict[str, int]:
    """Sides of tiles. Products in fp32 have no tensor cores, and codes are decoded in registers: fewer rows fit."""
    sides = head_sides(dim, v_dim)
    most = 64 if kind == BF16 and not wide else 16
    rows = min(max(16, 1 << (group - 1).bit_length()), most)
    keys = 16 if wide else 32 if is_long(sides) or (sides["D_REST"] and kind != BF16) else 64
    return sides | {"GROUP": group, "ROWS": rows, "KEYS": keys}


def _options(constants: dict[str, Any]) -> dict[str, int]:
    """Warps and stages that keep two blocks on a processor and spill nothing."""
    if constants["WIDE"]:
        return {"num_warps": 8 if constants["V"] > 128 else 4, "num_stages": 2 if constants["KIND"] == FP32 else 1}
    long = is_long(constants)
    by_token = constants["SCALE"] == BY_TOKEN
    e4m3 = constants["HALF"] and (constants["V_REST"] or (constants["V"] > 128 and not by_token))
    parted = constants["V_REST"] and constants["KIND"] != BF16 and not by_token
    warps = 8 if e4m3 or parted or (long and constants["ROWS"] > 16) else 4  # with tags alone four spill on sm_90
    return {"num_warps": warps, "num_stages": 2 if long and by_token else 3}


def signatures() -> list[Any]:
    """All that can be chosen, for compiling without a GPU: `evalsvc.kernels.compiling.Signature`."""
    from .paged_cases import HEADS, case_signatures, cases

    results = {"sums": "*fp32", "peaks": "*fp32", "totals": "*fp32"}
    numbers = dict.fromkeys(("columns", "kv_heads", "splits", "window"), "i32") | {"scaling": "fp32", "softcap": "fp32"}
    some, compiled = cases(tiles_by_group=True), {"SPLIT": SPLIT, "WHOLE": False}
    found = case_signatures("paged_decode", _attend, some, sizes, _options, results, numbers, **compiled)
    for (head, (_, v_dim)), fp32 in product(HEADS.items(), (False, True)):
        name = f"paged_decode merge, {'fp32' if fp32 else 'bf16'}; {head}, all options"
        found.append(merging_signature(name, v_dim, True, fp32))
    return found


def _merged(v_dim: int) -> int:
    """Splits that are merged at once, within a program's registers."""
    return 16 if v_dim <= 256 else 8


def merging_signature(name: str, v_dim: int, options: bool, fp32: bool = False) -> Any:
    """The merge of splits in one configuration."""
    from .compiling import Signature

    constants = {"SPLIT": SPLIT, "MERGED": _merged(v_dim), "V_DIM": v_dim}
    constants |= {"V": 1 << (v_dim - 1).bit_length(), "FP32": fp32, "WINDOWED": options, "SINKS": options}
    types = dict.fromkeys(("sums", "peaks", "totals"), "*fp32")
    types |= {"lengths": "*i32"} | dict.fromkeys(("sinks", "out"), "*fp32" if fp32 else "*bf16")
    numbers = dict.fromkeys(("heads", "splits", "window"), "i32")
    return Signature(name, _merge, types | numbers, constants, aligned=tuple(types))
