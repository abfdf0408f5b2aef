"""Which keys each query of sparse attention reads, from index keys in pages: the form for GPUs.

    I(t, s) = sum_h w_h(t) * relu(scale * q_h(t) . k_s),    s <= t
    rank(t, s) = order(I(t, s)) * 2^32 + (2^31 - 1 - s)

t reads the `topk` keys of highest rank: those of highest I, of equal ones the earlier, as in
`evalsvc.kernels.sparse_index`; all that it sees where there are no more. `order` is an fp32's bits as an int32 that
ascends with it, zeros alike and NaN above all. No two ranks are equal, so that whatever finds the highest of them finds
the same.

Products are of bf16 numbers, or of fp32 where queries or keys are; sums are fp32. A key's scale multiplies the product.
A program has a block of keys for some queries of a request, one query after the other: what is beside a query changes
no bit of its scores.

An index key is read by every query behind it, so where stamps are given each slot of a request is compared, once: by
the first tile of queries that reads it.
"""

from typing import Any

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import dequantize_e4m3
from .jit import constexpr, dot, jit, tl, to_bf16
from .page_table import PAGE, QUERIES, Guarding, PageTable, check_guarding, check_options, refuse
from .paged_launch import held
from .paged_parts import BF16, E4M3, E4M3_BYTES, FP32, read_query, read_tile, report, sound_slots

LOWEST = -(2**63)
"""Rank of a key that its query does not see."""
_KEYS = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
_TILE, _BLOCK, _WIDE_BLOCK = 8, 128, 16
_OPTIONS = {"num_warps": 4, "num_stages": 2}
_MOST_RANKS = 2**26  # held at once: 512 MiB
_PAGE, _NONE, _NAN = constexpr(PAGE), constexpr(2147483647), constexpr(0x7FC00000)


@jit
def _rank(
    q, weights, keys, key_scale, pages, lengths, starts, tile_requests, tile_firsts,
    stamps, expected, faults, sound, ranks, columns, heads, first_tile, first_row, scale,
    TILE: constexpr, KEYS: constexpr, HEADS: constexpr, DIM: constexpr, D: constexpr,
    KIND: constexpr, CODED: constexpr, WIDE: constexpr, GUARDED: constexpr, ALONE: constexpr,
):  # fmt: skip
    """A block of keys for TILE queries of a request; ALONE: each request has one query, and the tile is its number."""
    tile, block = tl.program_id(0) + first_tile, tl.program_id(1)
    request, before, start_row, count = tile, 0, tile, 1
    if not ALONE:
        request, before = tl.load(tile_requests + tile), tl.load(tile_firsts + tile)
        start_row = tl.load(starts + request)
        count = tl.load(starts + request + 1) - start_row
    earlier = tl.load(lengths + request) - count
    stop = earlier + tl.minimum(before + TILE, count)
    if block * KEYS < stop:
        position = block * KEYS + tl.arange(0, KEYS)
        loaded = position < stop
        cell = request.to(tl.int64) * columns + position // _PAGE
        slot = tl.load(pages + cell, mask=loaded, other=0).to(tl.int64) * _PAGE + position % _PAGE
        if GUARDED:
            compared = loaded & ((position >= earlier + before) | (position * 0 == before))
            same = sound_slots(stamps, expected + cell, slot, position, compared)
            worst = tl.where(same == compared, _NONE, position)
            report(faults + request, sound + request, worst, same.to(tl.int32), tile >= 0)
        key = read_tile(keys, slot * DIM, loaded, 0, DIM, D, KIND, True)
        if not WIDE:
            key = to_bf16(key)
        by_key = tl.load(key_scale + slot, mask=loaded, other=0.0) * scale if CODED else scale
        head = tl.arange(0, HEADS)
        for i in range(TILE):
            if before + i < count:
                line = (start_row + before + i).to(tl.int64) * heads + head
                query = read_query(q, line * DIM, head < heads, 0, DIM, D, WIDE)
                weight = tl.load(weights + line, mask=head < heads, other=0.0)
                each = dot(key, tl.trans(query), tl.zeros((KEYS, HEADS), tl.float32))
                each = each * by_key[:, None] if CODED else each * by_key
                score = tl.sum(tl.where(each < 0, 0.0, each) * weight[None, :], 1)
                bits = tl.where(score == score, tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True), _NAN)
                rank = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) << 32) + (2147483647 - position)
                row = ranks + (start_row + before + i - first_row).to(tl.int64) * columns * _PAGE
                tl.store(row + position, rank, mask=position <= earlier + before + i)


def choose_keys(
    q: Tensor,
    weights: Tensor,
    key_pages: Tensor,
    key_scale: Tensor | None,
    table: PageTable,
    scale: float,
    topk: int,
    guarding: Guarding | None = None,
) -> Tensor:
    """Chooses keys for every query of a packed batch.

    Args:
        q: Index queries, fp32 or bf16. Shape: (queries, index_heads, index_dim).
        weights: Of each head's score, fp32. Shape: (queries, index_heads).
        key_pages: One layer's index keys. Shape: (slots, index_dim); fp32, bf16 or float8_e4m3fn.
        key_scale: One for each key of float8_e4m3fn. Shape: (slots,), fp32; else None.
        table: Any number of queries a request, the last of its keys.
        scale: Of a head's score.
        topk: Most keys that a query reads.
        guarding: Stamps to compare, of all keys of each request, and where findings go; None: nothing is compared.

    Returns:
        Positions in ascending order, int32. Shape: (queries, the smaller of topk and the keys that pages have room
        for). A query that sees fewer keys has all of them first, and behind them positions that it does not see.

    Raises:
        CapabilityError: What is not served, named.
    """
    _check(q, weights, key_pages, key_scale, table, topk, guarding)
    ran("index_ranks.triton")
    columns, constants = table.pages.shape[1], _sizes(q, key_pages, table.decodes)
    pages, kind = held(key_pages)
    unused = table.lengths
    findings = (unused,) * 4 if guarding is None else guarding.tensors()
    tiles = (unused,) * 3 if table.decodes else (table.starts, *table.tiles(_TILE))
    chosen = torch.empty((len(q), min(topk, columns * PAGE)), dtype=torch.int32, device=q.device)
    rows = _first_rows(table.counts, constants["TILE"])
    at_once = max(1, _MOST_RANKS // (columns * PAGE * constants["TILE"]))
    for first in range(0, len(rows) - 1, at_once):
        last = min(first + at_once, len(rows) - 1)
        some = slice(rows[first], rows[last])
        ranks = torch.full((some.stop - some.start, columns * PAGE), LOWEST, dtype=torch.int64, device=q.device)
        _rank[(last - first, -(-columns * PAGE // constants["KEYS"]))](
            q, weights, pages, q if key_scale is None else key_scale, table.pages, table.lengths, *tiles, *findings,
            ranks, columns, q.shape[1], first, some.start, scale,
            **constants, KIND=kind, CODED=key_scale is not None, GUARDED=guarding is not None, **_OPTIONS,
        )  # fmt: skip
        chosen[some] = highest(ranks, chosen.shape[1])
    return chosen


def choose_keys_torch(
    q: Tensor,
    weights: Tensor,
    key_pages: Tensor,
    key_scale: Tensor | None,
    table: PageTable,
    scale: float,
    topk: int,
    guarding: Guarding | None = None,
) -> Tensor:
    """As `choose_keys`, request by request in torch: what the kernel is held against."""
    _check(q, weights, key_pages, key_scale, table, topk, guarding)
    ran("index_ranks.torch")
    if guarding is not None:
        guarding.compare(table, None)
    width, split = table.pages.shape[1] * PAGE, list(table.counts)
    rows = [torch.empty((0, min(topk, width)), dtype=torch.int32, device=q.device)]
    for i, (asking, weight) in enumerate(zip(q.split(split), weights.split(split), strict=True)):
        slots, ranks = table.slots(i), torch.full((len(asking), width), LOWEST, device=q.device)
        scores = index_scores(asking, weight, _values(key_pages, key_scale, slots), scale)
        position = torch.arange(len(slots), device=q.device)
        seen = position <= position[len(slots) - len(asking) :, None]
        ranks[:, : len(slots)] = ranks_of(scores, position).where(seen, LOWEST)
        rows.append(highest(ranks, rows[0].shape[1]))
    return torch.cat(rows)


def index_scores(q: Tensor, weights: Tensor, keys: Tensor, scale: float) -> Tensor:
    """The formula's I, in fp32, or in what the keys are.

    Args:
        q: Shape: (queries, index_heads, index_dim).
        weights: Shape: (queries, index_heads).
        keys: Shape: (keys, index_dim).

    Returns:
        Shape: (queries, keys).
    """
    each = torch.einsum("thd,sd->ths", q.to(keys.dtype), keys).mul(scale).relu()
    return torch.einsum("ths,th->ts", each, weights.to(keys.dtype))


def ranks_of(scores: Tensor, position: Tensor) -> Tensor:
    """Ranks of fp32 scores of keys at some positions. Shape: (queries, keys), int64."""
    plain = torch.where(scores.isnan(), torch.nan, scores + 0.0)  # one NaN, one zero
    bits = plain.view(torch.int32)
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) + (2**31 - 1 - position)


def highest(ranks: Tensor, most: int) -> Tensor:
    """Positions of the highest ranks, ascending; those of keys that are not seen lie behind all others.

    Shape: (queries, keys) -> (queries, most), int32.
    """
    best = ranks.topk(most, dim=-1, sorted=False).values
    return (2**31 - 1 - (best & 0xFFFFFFFF)).int().sort(dim=-1).values


def _values(pages: Tensor, scale: Tensor | None, slots: Tensor) -> Tensor:
    """Index keys of some slots as stored, in fp32. Shape: (slots, index_dim)."""
    if scale is None:
        return pages[slots].float()
    return dequantize_e4m3(pages.view(torch.uint8)[slots].view(torch.float8_e4m3fn)) * scale[slots, None]


def _first_rows(counts: tuple[int, ...], tile: int) -> list[int]:
    """Which query of the batch each tile begins with, and how many there are."""
    found, start = [], 0
    for count in counts:
        found += range(start, start + count, tile)
        start += count
    return [*found, start]


def _check(
    q: Tensor,
    weights: Tensor,
    key_pages: Tensor,
    key_scale: Tensor | None,
    table: PageTable,
    topk: int,
    guarding: Guarding | None,
) -> None:
    kernel = "index_ranks"
    given = {"q": q, "weights": weights, "key_pages": key_pages}
    refuse(kernel, {"q or key_pages are of other dimensions than 3 and 2": (q.ndim, key_pages.ndim) != (3, 2)})
    slots, dim = key_pages.shape
    found = {
        f"q is {q.dtype}; served: {', '.join(map(str, QUERIES))}": q.dtype not in QUERIES,
        f"key_pages are {key_pages.dtype}; served: {', '.join(map(str, _KEYS))}": key_pages.dtype not in _KEYS,
        f"weights are {weights.dtype}, not torch.float32": weights.dtype != torch.float32,
        f"q has shape {tuple(q.shape)}, weights {tuple(weights.shape)}": weights.shape != q.shape[:2],
        f"q has index_dim {q.shape[2]}, key_pages {dim}": q.shape[2] != dim,
        f"{slots} slots are no whole pages of {PAGE}": slots % PAGE != 0,
        f"topk {topk} is below 1": topk < 1,
        f"{key_pages.dtype} pages and scales do not go together": (key_pages.dtype == torch.float8_e4m3fn)
        != (key_scale is not None),
    }
    if key_scale is not None:
        given["key_scale"] = key_scale
        found[f"key_scale is {key_scale.dtype}, not torch.float32"] = key_scale.dtype != torch.float32
        found[f"key_scale has shape {tuple(key_scale.shape)}, not {(slots,)}"] = key_scale.shape != (slots,)
    for name, tensor in given.items():
        found[f"{name} is on {tensor.device}, q on {q.device}"] = tensor.device != q.device
        found[f"{name} is not contiguous"] = not tensor.is_contiguous()
    refuse(kernel, found)
    check_options(kernel, q, table, None, None, None)
    check_guarding(kernel, slots, table, guarding)


def _sizes(q: Tensor, key_pages: Tensor, alone: bool) -> dict[str, Any]:
    """Sides of tiles. Products in fp32 have no tensor cores: small tiles stay in registers."""
    _, heads, dim = q.shape
    return _sides(heads, dim, torch.float32 in (q.dtype, key_pages.dtype), alone)


def _sides(heads: int, dim: int, wide: bool, alone: bool) -> dict[str, Any]:
    padded = {"HEADS": max(16, 1 << (heads - 1).bit_length()), "D": max(16, 1 << (dim - 1).bit_length())}
    tile, keys = 1 if alone else _TILE, _WIDE_BLOCK if wide else _BLOCK
    return padded | {"TILE": tile, "KEYS": keys, "DIM": dim, "WIDE": wide, "ALONE": alone}


def signatures() -> list[Any]:
    """Default configurations, for compiling without a GPU: `evalsvc.kernels.compiling.Signature`."""
    from .compiling import Signature

    pages = {FP32: "*fp32", BF16: "*bf16", E4M3: "*fp8e4nv", E4M3_BYTES: "*u8"}
    cases = {  # kind, heads, one query a request, guarded
        "bf16, guarded": (BF16, 32, False, True),
        "e4m3, one query, guarded": (E4M3, 32, True, True),
        "e4m3, 64 heads": (E4M3, 64, False, False),
        "e4m3 as bytes, 64 heads, guarded": (E4M3_BYTES, 64, False, True),
        "fp32": (FP32, 32, False, False),
    }
    found = []
    for name, (kind, heads, alone, guarded) in cases.items():
        wide = kind == FP32
        types = {"q": "*fp32" if wide else "*bf16", "weights": "*fp32", "keys": pages[kind], "key_scale": "*fp32"}
        types |= dict.fromkeys(("pages", "lengths", "starts", "tile_requests", "tile_firsts"), "*i32")
        types |= dict.fromkeys(("stamps", "expected", "faults", "sound"), "*i32") | {"ranks": "*i64"}
        numbers = dict.fromkeys(("columns", "heads", "first_tile", "first_row"), "i32") | {"scale": "fp32"}
        constants = _sides(heads, 128, wide, alone)
        constants |= {"KIND": kind, "CODED": kind in (E4M3, E4M3_BYTES), "GUARDED": guarded}
        found.append(
            Signature(
                f"index_ranks {name}", _rank, types | numbers, constants, needs_fp8=kind == E4M3,
                lacks_fp8=kind == E4M3_BYTES, aligned=tuple(types), **_OPTIONS,
            )
        )  # fmt: skip
    return found
