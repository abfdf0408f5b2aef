"""Absorbed latent attention of one query a request over pages of latents, split along the sequence.

A key is a latent c of `rank` numbers, which is its value too, and a rope key r; all heads read the same:

    S_s = scaling * (q_c . c_s + q_r . r_s),     out = (sum_s exp(S_s - m) c_s) / (sum_s exp(S_s - m)),     m = max S

as `evalsvc.kernels.latent_attention` has it: a row is read as code times scale, rounded to bf16 unless queries or pages
are fp32; weights are rounded alike; scores and sums are fp32. Scales: none, one for latents and rope keys, or one for
each tile of a latent and none for rope keys.

A block of keys is read once for ROWS heads, as key and as value. Splits and their merge are those of
`evalsvc.kernels.paged_decode`, and so is the comparison of stamps: neighbours leave every bit as it is.

Sparse attention reads a list of positions: keys come in the list's order, splits are of the list, and the slots that it
names are compared, and no others.
"""

from typing import Any

import torch
from torch import Tensor

from .dispatch import ran
from .jit import constexpr, dot, jit, tl, to_bf16
from .latent_attention import read_rows
from .page_table import PAGE, QUERIES, Guarding, PageTable, check_guarding, check_options, refuse
from .paged_decode import SPLIT, merge_splits, merging_signature
from .paged_launch import held
from .paged_parts import (
    BF16,
    E4M3,
    E4M3_BYTES,
    FP32,
    MASKED,
    NO_SCALE,
    ONE,
    read_query,
    read_tile,
    report,
    scores_base2,
    sound_slots,
    weigh,
    write_rows,
)

BY_TILE = 4
"""A scale for each tile of a latent, as a kernel's constant."""
_OPTIONS = {"num_warps": 8, "num_stages": 2}
_MOST_SUMS = 2**26  # held at once: 256 MiB
LATENTS = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)  # types of their pages
_PAGE, _MASKED, _NONE = constexpr(PAGE), constexpr(MASKED), constexpr(2147483647)
_ONE, _BY_TILE = constexpr(ONE), constexpr(BY_TILE)


@jit
def _attend(
    q_latent, q_rope, latent, rope, scale, pages, lengths, chosen, stamps, expected, faults, sound, sums, peaks, totals,
    columns, most, heads, splits, scaling,
    ROWS: constexpr, KEYS: constexpr, SPLIT: constexpr, RANK: constexpr, ROPE: constexpr, TILES: constexpr,
    KIND: constexpr, ROPE_KIND: constexpr, SCALE: constexpr, WIDE: constexpr, GUARDED: constexpr,
    LISTED: constexpr,
):  # fmt: skip
    """A split of a request, for ROWS heads. LISTED: `lengths` are of lists, in rows of `most` positions."""
    request, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = part * ROWS + tl.arange(0, ROWS)
    mine = row < heads
    stop = tl.minimum((split + 1) * SPLIT, tl.load(lengths + request))
    if split * SPLIT < stop:
        lines = request.to(tl.int64) * heads + row
        query = read_query(q_latent, lines * RANK, mine, 0, RANK, RANK, WIDE)
        query_rope = read_query(q_rope, lines * ROPE, mine, 0, ROPE, ROPE, WIDE)
        peak, total = tl.full((ROWS,), _MASKED, tl.float32), tl.zeros((ROWS,), tl.float32)
        acc = tl.zeros((ROWS, RANK), tl.float32)
        worst, counted = tl.full((KEYS,), _NONE, tl.int32), tl.zeros((KEYS,), tl.int32)
        for start in range(split * SPLIT, stop, KEYS):
            position = start + tl.arange(0, KEYS)
            seen = position < stop
            if LISTED:
                position = tl.load(chosen + request.to(tl.int64) * most + position, mask=seen, other=0)
            cell = request.to(tl.int64) * columns + position // _PAGE
            slot = tl.load(pages + cell, mask=seen, other=0).to(tl.int64) * _PAGE + position % _PAGE
            if GUARDED:
                compared = seen & (position * 0 == part)
                same = sound_slots(stamps, expected + cell, slot, position, compared)
                counted += same.to(tl.int32)
                worst = tl.minimum(worst, tl.where(same == compared, _NONE, position))
            key = read_tile(latent, slot * RANK, seen, 0, RANK, RANK, KIND, True)
            rope_key = read_tile(rope, slot * ROPE, seen, 0, ROPE, ROPE, ROPE_KIND, True)
            if SCALE == _ONE:
                key, rope_key = key * tl.load(scale), rope_key * tl.load(scale)
            elif SCALE == _BY_TILE:
                at = slot[:, None] * TILES + tl.arange(0, TILES)[None, :]
                each = tl.load(scale + at, mask=seen[:, None], other=0.0)
                key = tl.reshape(tl.reshape(key, (KEYS, TILES, RANK // TILES)) * each[:, :, None], (KEYS, RANK))
            if not WIDE:
                key, rope_key = to_bf16(key), to_bf16(rope_key)
            score = dot(query, tl.trans(key), tl.zeros((ROWS, KEYS), tl.float32))
            score = dot(query_rope, tl.trans(rope_key), score)
            weight, peak, total, shrink = weigh(scores_base2(score, scaling, 1.0, False), seen[None, :], peak, total)
            if not WIDE:
                weight = to_bf16(weight)
            acc = dot(weight, key, acc * shrink[:, None])
        if GUARDED:
            report(faults + request, sound + request, worst, counted, part == 0)
        cells = (request * splits + split).to(tl.int64) * heads + row
        tl.store(peaks + cells, peak, mask=mine)
        tl.store(totals + cells, total, mask=mine)
        write_rows(sums, cells * RANK, mine, 0, acc, RANK, RANK, True)


def latent_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    table: PageTable,
    scaling: float,
    guarding: Guarding | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """Attention of one query a request over one layer's pages of latents.

    Args:
        q_latent: fp32 or bf16. Shape: (requests, heads, rank).
        q_rope: Alike. Shape: (requests, heads, rope).
        latent_pages: fp32, bf16 or float8_e4m3fn. Shape: (slots, rank); rank and rope are powers of two from 16 on.
        rope_pages: As `latent_pages`, but bf16 where scales are those of tiles. Shape: (slots, rope).
        scale: fp32; None for fp32 and bf16 pages; a scalar; or shape (slots, tiles).
        table: One query a request.
        scaling: Softmax scale.
        guarding: As in `paged_decode`; of the positions that are read.
        chosen: Positions that each query reads, `choose_keys`'s: as many as there are, and no more than its keys.
            Shape: (requests, most), int32; None: all.

    Returns:
        Weighted sums of latents. Shape: (requests, heads, rank), dtype of `q_latent`.

    Raises:
        CapabilityError: What is not served, named.
    """
    _check(q_latent, q_rope, latent_pages, rope_pages, scale, table, guarding, chosen)
    ran("latent_decode.triton")
    requests, heads, rank = q_latent.shape
    wide = torch.float32 in (q_latent.dtype, latent_pages.dtype)
    most, lengths = table.pages.shape[1] * PAGE, table.lengths
    if chosen is not None:
        most, lengths = chosen.shape[1], lengths.clamp(max=chosen.shape[1])
    splits = -(-most // SPLIT)
    (latents, kind), (ropes, rope_kind) = held(latent_pages), held(rope_pages)
    findings = (table.lengths,) * 4 if guarding is None else guarding.tensors()
    constants = _sizes(rank, q_rope.shape[2], wide, heads, scale is not None)
    out = torch.empty_like(q_latent)
    for some in _slices(requests, splits * heads * rank):
        few = lengths[some]
        sums = torch.empty((len(few), splits, heads, rank), dtype=torch.float32, device=q_latent.device)
        peaks, totals = torch.empty((2, len(few), splits, heads), dtype=torch.float32, device=q_latent.device)
        _attend[(len(few), -(-heads // constants["ROWS"]), splits)](
            q_latent[some], q_rope[some], latents, ropes, q_latent if scale is None else scale, table.pages[some], few,
            few if chosen is None else chosen[some], findings[0], *(found[some] for found in findings[1:]),
            sums, peaks, totals, table.pages.shape[1], most, heads, splits, scaling,
            **constants, TILES=1 if scale is None or scale.ndim == 0 else scale.shape[1], KIND=kind,
            ROPE_KIND=rope_kind, SCALE=scale_kind(scale), WIDE=wide, GUARDED=guarding is not None,
            LISTED=chosen is not None, **_OPTIONS,
        )  # fmt: skip
        merge_splits(sums, peaks, totals, few, out[some])
    return out


def latent_decode_torch(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    table: PageTable,
    scaling: float,
    guarding: Guarding | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """As `latent_decode`, request by request in torch: what the kernel is held against."""
    _check(q_latent, q_rope, latent_pages, rope_pages, scale, table, guarding, chosen)
    ran("latent_decode.torch")
    if guarding is not None:
        guarding.compare(table, None, chosen)
    narrow = torch.float32 if torch.float32 in (q_latent.dtype, latent_pages.dtype) else torch.bfloat16
    rows = []
    for i in range(len(q_latent)):
        slots = table.slots(i) if chosen is None else table.slots(i)[chosen[i, : int(table.lengths[i])]]
        latent, rope = (t.float() for t in read_rows(latent_pages, rope_pages, scale, slots, narrow))
        weight = ((q_latent[i].float() @ latent.T + q_rope[i].float() @ rope.T) * scaling).softmax(-1)
        peak = weight.amax(-1, keepdim=True)  # weights are rounded as shares of the largest
        rows.append((weight / peak).to(narrow).float() @ latent * peak)
    return torch.stack(rows).to(q_latent.dtype)


def _check(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    table: PageTable,
    guarding: Guarding | None,
    chosen: Tensor | None,
) -> None:
    given = {"q_latent": q_latent, "q_rope": q_rope, "latent_pages": latent_pages, "rope_pages": rope_pages}
    (slots, rank), rope = latent_pages.shape, rope_pages.shape[1]
    tiled = scale is not None and scale.ndim == 2
    found = {
        f"q_latent is {q_latent.dtype}, q_rope {q_rope.dtype}; served: both fp32 or bf16": q_latent.dtype not in QUERIES
        or q_rope.dtype != q_latent.dtype,
        f"latent_pages are {latent_pages.dtype}; served: fp32, bf16 and e4m3": latent_pages.dtype not in LATENTS,
        f"rope_pages are {rope_pages.dtype} beside latents in {latent_pages.dtype}": rope_pages.dtype
        != (torch.bfloat16 if tiled else latent_pages.dtype),
        f"rank {rank} and rope {rope} are not both powers of two from 16 on": not all(
            size >= 16 and size & (size - 1) == 0 for size in (rank, rope)
        ),
        f"queries have shapes {tuple(q_latent.shape)} and {tuple(q_rope.shape)}, pages rows of {rank} and {rope}": (
            q_latent.shape[2],
            *q_rope.shape,
        )
        != (rank, *q_latent.shape[:2], rope),
        f"{slots} slots are no whole pages of {PAGE}": slots % PAGE != 0 or len(rope_pages) != slots,
        f"{latent_pages.dtype} pages and scales do not go together": (latent_pages.dtype == torch.float8_e4m3fn)
        != (scale is not None),
    }
    if scale is not None:
        given["scale"] = scale
        found[f"scale is {scale.dtype}, not torch.float32"] = scale.dtype != torch.float32
        fits = scale.ndim == 0 or (tiled and len(scale) == slots and rank % scale.shape[1] == 0)
        found[f"scale has shape {tuple(scale.shape)}; served: () and ({slots}, tiles)"] = not fits
    if chosen is not None:
        given["chosen"] = chosen
        found[f"chosen is {chosen.dtype}, not torch.int32"] = chosen.dtype != torch.int32
        fits = chosen.ndim == 2 and len(chosen) == len(q_latent) and chosen.shape[1] > 0
        found[f"chosen has shape {tuple(chosen.shape)}, not ({len(q_latent)}, positions)"] = not fits
    for name, tensor in given.items():
        found[f"{name} is on {tensor.device}, q_latent on {q_latent.device}"] = tensor.device != q_latent.device
        found[f"{name} is not contiguous"] = not tensor.is_contiguous()
    found["a request has more than one query, or none"] = not table.decodes
    refuse("latent_decode", found)
    check_options("latent_decode", q_latent, table, None, None, None)
    check_guarding("latent_decode", slots, table, guarding)


def _slices(requests: int, sums: int) -> list[slice]:
    """Requests that are served together, of so many sums each: fours, whose addresses are aligned as the first's."""
    each = max(_MOST_SUMS // sums // 4, 1) * 4
    return [slice(first, first + each) for first in range(0, requests, each)]


def scale_kind(scale: Tensor | None) -> int:
    """What a program is told of the scales of latents."""
    return NO_SCALE if scale is None else BY_TILE if scale.ndim == 2 else ONE


def _sizes(rank: int, rope: int, wide: bool, heads: int, coded: bool) -> dict[str, int]:
    """Sides of tiles. 32 heads read a latent together; 16 where codes take registers, or products are in fp32."""
    rows = 16 if wide or coded or heads <= 16 else 32
    return {"ROWS": rows, "KEYS": 16 if wide else 32, "SPLIT": SPLIT, "RANK": rank, "ROPE": rope}


def signatures() -> list[Any]:
    """Default configurations, for compiling without a GPU: `evalsvc.kernels.compiling.Signature`."""
    from .compiling import Signature

    pages = {FP32: "*fp32", BF16: "*bf16", E4M3: "*fp8e4nv", E4M3_BYTES: "*u8"}
    cases = {
        "bf16, guarded": (BF16, NO_SCALE, 1, True, False),
        "bf16, listed, guarded": (BF16, NO_SCALE, 1, True, True),
        "e4m3, a scale for each 128": (E4M3, BY_TILE, 4, True, False),
        "e4m3, a scale for each 128, listed": (E4M3, BY_TILE, 4, True, True),
        "e4m3 as bytes, one scale": (E4M3_BYTES, ONE, 1, False, False),
        "e4m3 as bytes, one scale, listed": (E4M3_BYTES, ONE, 1, True, True),
        "fp32": (FP32, NO_SCALE, 1, False, False),
        "fp32, listed": (FP32, NO_SCALE, 1, True, True),
    }
    found = []
    for name, (kind, scale, tiles, guarded, listed) in cases.items():
        wide = kind == FP32
        rope_kind = BF16 if scale == BY_TILE else kind
        types = dict.fromkeys(("q_latent", "q_rope"), "*fp32" if wide else "*bf16")
        types |= {"latent": pages[kind], "rope": pages[rope_kind], "scale": "*fp32"}
        types |= dict.fromkeys(("pages", "lengths", "chosen", "stamps", "expected", "faults", "sound"), "*i32")
        types |= dict.fromkeys(("sums", "peaks", "totals"), "*fp32")
        numbers = dict.fromkeys(("columns", "most", "heads", "splits"), "i32") | {"scaling": "fp32"}
        constants = _sizes(512, 64, wide, 64, scale != NO_SCALE) | {
            "TILES": tiles,
            "KIND": kind,
            "ROPE_KIND": rope_kind,
            "SCALE": scale,
        }
        constants |= {"WIDE": wide, "GUARDED": guarded, "LISTED": listed}
        title = f"latent_decode {name}"
        found.append(
            Signature(
                title, _attend, types | numbers, constants, needs_fp8=kind == E4M3,
                lacks_fp8=kind == E4M3_BYTES, aligned=tuple(types),
                **_OPTIONS,
            )
        )  # fmt: skip
    return [*found, merging_signature("latent_decode merge", 512, False)]
