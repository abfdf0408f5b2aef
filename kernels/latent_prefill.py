"""Expanded latent attention of many queries a request over pages of latents.

    k_h,s = (W_uk,h c_s, r_s),    v_h,s = W_uv,h c_s,    out_h = softmax(scaling q_h . k_h,s) v_h,s,    s <= t

as the expanded form of `evalsvc.kernels.latent_attention` has it: a row is read as code times scale, rounded to bf16
unless queries or pages are fp32; products are summed in fp32, and keys and values rounded alike. Each latent is
multiplied out once for all queries of a batch, into a copy of some heads' keys and values in order of positions, which
`evalsvc.kernels.paged_prefill` reads. How many heads are copied at once keeps the copy small, whatever the length of a
request, and changes no bit.

Where stamps are given, each slot of a request is compared once: in the program that multiplies it out for the first
head.
"""

from typing import Any

import torch
from torch import Tensor

from .dispatch import ran
from .jit import constexpr, dot, jit, tl, to_bf16
from .latent_attention import narrow_type, read_rows
from .latent_decode import BY_TILE, LATENTS, scale_kind
from .page_table import PAGE, QUERIES, Guarding, PageTable, check_guarding, check_options, refuse
from .paged_launch import held
from .paged_parts import (
    BF16,
    E4M3,
    E4M3_BYTES,
    FP32,
    NO_SCALE,
    ONE,
    read_tile,
    report,
    sound_slots,
    write_rows,
)
from .paged_prefill import paged_prefill
from .paged_reference import attend_request

_MOST_NUMBERS = 2**29  # of keys and values that are held at once: 1 GiB in bf16
_OPTIONS = {"num_warps": 4, "num_stages": 3}
_PAGE, _NONE = constexpr(PAGE), constexpr(2147483647)
_ONE, _BY_TILE = constexpr(ONE), constexpr(BY_TILE)


@jit
def _expand(
    latent, rope, scale, up, pages, lengths, own, stamps, expected, faults, sound, keys, values,
    columns, own_columns, first_head, heads,
    KEYS: constexpr, OUT: constexpr, NOPE: constexpr, WIDTH: constexpr, RANK: constexpr, STEP: constexpr,
    ROPE: constexpr, R: constexpr, TILES: constexpr, KIND: constexpr, ROPE_KIND: constexpr, SCALE: constexpr,
    WIDE: constexpr, GUARDED: constexpr,
):  # fmt: skip
    """OUT numbers of one head's keys and values, of a block of a request's positions. `own`: pages in the copy."""
    block, request = tl.program_id(0), tl.program_id(1)
    head, part = tl.program_id(2) % heads, tl.program_id(2) // heads
    length = tl.load(lengths + request)
    if block * KEYS < length:
        position = block * KEYS + tl.arange(0, KEYS)
        there = position < length
        cell = request.to(tl.int64) * columns + position // _PAGE
        slot = tl.load(pages + cell, mask=there, other=0).to(tl.int64) * _PAGE + position % _PAGE
        if GUARDED:
            compared = there & (position * 0 == head + part)
            same = sound_slots(stamps, expected + cell, slot, position, compared)
            worst = tl.where(same == compared, _NONE, position)
            report(faults + request, sound + request, worst, same.to(tl.int32), head + part == 0)
        n, at = part * OUT + tl.arange(0, OUT), tl.arange(0, STEP)
        of_head = up + (first_head + head).to(tl.int64) * ((NOPE + WIDTH) * RANK)
        acc = tl.zeros((KEYS, OUT), tl.float32)
        for first in range(0, RANK, STEP):
            row = read_tile(latent, slot * RANK, there, first, RANK, STEP, KIND, True)
            if SCALE == _ONE:
                row = row * tl.load(scale)
            elif SCALE == _BY_TILE:
                row = row * tl.load(scale + slot * TILES + first // (RANK // TILES), mask=there, other=0.0)[:, None]
            if not WIDE:
                row = to_bf16(row)
            column = of_head + n[None, :] * RANK + first + at[:, None]
            acc = dot(row, tl.load(column, mask=(n < NOPE + WIDTH)[None, :], other=0.0), acc)
        acc = acc if WIDE else to_bf16(acc)
        page = tl.load(own + request.to(tl.int64) * own_columns).to(tl.int64)
        line = (page * _PAGE + position) * heads + head
        of_key, of_value = there[:, None] & (n < NOPE)[None, :], (n >= NOPE) & (n < NOPE + WIDTH)
        tl.store(keys + (line * (NOPE + ROPE))[:, None] + n[None, :], acc, mask=of_key)
        tl.store(values + (line * WIDTH - NOPE)[:, None] + n[None, :], acc, mask=there[:, None] & of_value[None, :])
        if part == 0:
            row = read_tile(rope, slot * ROPE, there, 0, ROPE, R, ROPE_KIND, True)
            if SCALE == _ONE:
                row = row * tl.load(scale)
            write_rows(keys, line * (NOPE + ROPE) + NOPE, there, 0, row, ROPE, R, WIDE)


def latent_prefill(
    q_nope: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    up: Tensor,
    table: PageTable,
    scaling: float,
    guarding: Guarding | None = None,
) -> Tensor:
    """Attention of each request's queries, their own keys the last of its keys, over one layer's pages of latents.

    Args:
        q_nope: fp32 or bf16, request after request. Shape: (tokens, heads, nope).
        q_rope: Alike. Shape: (tokens, heads, rope).
        latent_pages: fp32, bf16 or float8_e4m3fn. Shape: (slots, rank).
        rope_pages: As `latent_pages`, but bf16 where scales are those of tiles. Shape: (slots, rope).
        scale: fp32; None for fp32 and bf16 pages; a scalar; or shape (slots, tiles). A tile has a multiple of 16
            numbers.
        up: What expands a latent: W_uk over W_uv of each head. Shape: (heads, nope + v, rank).
        table: Any number of queries a request.
        scaling: Softmax scale.
        guarding: Stamps to compare, of all keys of each request, and where findings go; None: nothing is compared.

    Returns:
        Shape: (tokens, heads, v), dtype of `q_nope`.

    Raises:
        CapabilityError: What is not served, named.
    """
    _check(q_nope, q_rope, latent_pages, rope_pages, scale, up, table, guarding)
    ran("latent_prefill.triton")
    tokens, heads, nope = q_nope.shape
    rank, rope, width = latent_pages.shape[1], q_rope.shape[2], up.shape[1] - nope
    narrow = narrow_type(q_nope, latent_pages)
    (latents, kind), (ropes, rope_kind) = held(latent_pages), held(rope_pages)
    own, matrices, query = table.in_order, up.to(narrow).contiguous(), torch.cat([q_nope, q_rope], dim=-1)
    rows, columns = PAGE * sum(-(-end // PAGE) for end in own.known or ()), table.pages.shape[1]
    findings = (table.lengths,) * 4 if guarding is None else guarding.tensors()
    tiles = scale.shape[1] if scale is not None and scale.ndim == 2 else 1
    constants = _sizes(nope, width, rank, rope, tiles, narrow == torch.float32)
    out = q_nope.new_empty((tokens, heads, width))
    at_once = max(1, _MOST_NUMBERS // (max(rows, 1) * (nope + rope + width)))
    for first in range(0, heads, at_once):
        count = min(at_once, heads - first)
        keys = torch.empty((rows, count, nope + rope), dtype=narrow, device=q_nope.device)
        values = torch.empty((rows, count, width), dtype=narrow, device=q_nope.device)
        parts = -(-(nope + width) // constants["OUT"])
        _expand[(-(-columns * PAGE // constants["KEYS"]), len(table.pages), count * parts)](
            latents, ropes, q_nope if scale is None else scale, matrices, table.pages, table.lengths, own.pages,
            *findings, keys, values, columns, own.pages.shape[1], first, count,
            **constants, KIND=kind, ROPE_KIND=rope_kind, SCALE=scale_kind(scale),
            GUARDED=guarding is not None and first == 0, **_OPTIONS,
        )  # fmt: skip
        asking = query[:, first : first + count].contiguous()
        out[:, first : first + count] = paged_prefill(asking, keys, values, None, None, own, scaling)
    return out


def latent_prefill_torch(
    q_nope: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    up: Tensor,
    table: PageTable,
    scaling: float,
    guarding: Guarding | None = None,
) -> Tensor:
    """As `latent_prefill`, request by request in torch: what the kernel is held against."""
    _check(q_nope, q_rope, latent_pages, rope_pages, scale, up, table, guarding)
    ran("latent_prefill.torch")
    if guarding is not None:
        guarding.compare(table, None)
    narrow, nope, query = narrow_type(q_nope, latent_pages), q_nope.shape[2], torch.cat([q_nope, q_rope], dim=-1)
    rows = [q_nope.new_empty((0, len(up), up.shape[1] - nope))]
    for i, asking in enumerate(query.split(list(table.counts))):
        latent, rope = read_rows(latent_pages, rope_pages, scale, table.slots(i), narrow)
        both = torch.einsum("sr,hnr->shn", latent.float(), up.to(narrow).float()).to(narrow)
        keys = torch.cat([both[..., :nope], rope[:, None].expand(-1, len(up), -1)], dim=-1)
        slots = torch.arange(len(keys), device=keys.device)
        rows.append(attend_request(asking, keys, both[..., nope:], None, None, slots, scaling, None, None, None))
    return torch.cat(rows)


def _check(
    q_nope: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    up: Tensor,
    table: PageTable,
    guarding: Guarding | None,
) -> None:
    kernel = "latent_prefill"
    given = {"q_nope": q_nope, "q_rope": q_rope, "latent_pages": latent_pages, "rope_pages": rope_pages, "up": up}
    (slots, rank), rope, (_, heads, nope) = latent_pages.shape, rope_pages.shape[1], q_nope.shape
    tiles = scale.shape[1] if scale is not None and scale.ndim == 2 else 1
    found = {
        f"q_nope is {q_nope.dtype}, q_rope {q_rope.dtype}; served: both fp32 or bf16": q_nope.dtype not in QUERIES
        or q_rope.dtype != q_nope.dtype,
        f"latent_pages are {latent_pages.dtype}; served: fp32, bf16 and e4m3": latent_pages.dtype not in LATENTS,
        f"rope_pages are {rope_pages.dtype} beside latents in {latent_pages.dtype}": rope_pages.dtype
        != (torch.bfloat16 if scale is not None and scale.ndim == 2 else latent_pages.dtype),
        f"q_nope has shape {tuple(q_nope.shape)}, q_rope {tuple(q_rope.shape)}": (*q_nope.shape[:2], rope)
        != tuple(q_rope.shape),
        f"up has shape {tuple(up.shape)} for {heads} heads of {nope} and a rank of {rank}": (len(up), up.shape[2])
        != (heads, rank)
        or up.shape[1] <= nope,
        f"rank {rank} in {tiles} tiles is no whole number of 16 in each": rank % (16 * tiles) != 0,
        f"{slots} slots are no whole pages of {PAGE}": slots % PAGE != 0 or len(rope_pages) != slots,
        f"{latent_pages.dtype} pages and scales do not go together": (latent_pages.dtype == torch.float8_e4m3fn)
        != (scale is not None),
    }
    if scale is not None:
        given["scale"] = scale
        found[f"scale is {scale.dtype}, not torch.float32"] = scale.dtype != torch.float32
        found[f"scale has shape {tuple(scale.shape)}; served: () and ({slots}, tiles)"] = scale.shape not in (
            (),
            (slots, tiles),
        )
    for name, tensor in given.items():
        found[f"{name} is on {tensor.device}, q_nope on {q_nope.device}"] = tensor.device != q_nope.device
        found[f"{name} is not contiguous"] = not tensor.is_contiguous()
    refuse(kernel, found)
    check_options(kernel, q_nope, table, None, None, None)
    check_guarding(kernel, slots, table, guarding)


def _sizes(nope: int, width: int, rank: int, rope: int, tiles: int, wide: bool) -> dict[str, Any]:
    """Sides of tiles. Products in fp32 have no tensor cores: small tiles stay in registers."""
    out, r = (max(16, 1 << (size - 1).bit_length()) for size in (nope + width, rope))
    each = rank // tiles
    step = min(each & -each, 16 if wide else 64)
    sides = {"KEYS": 16 if wide else 64, "OUT": min(out, 128), "NOPE": nope, "WIDTH": width, "RANK": rank}
    return sides | {"STEP": step, "ROPE": rope, "R": r, "TILES": tiles, "WIDE": wide}


def signatures() -> list[Any]:
    """Default configurations, for compiling without a GPU: `evalsvc.kernels.compiling.Signature`."""
    from .compiling import Signature

    pages = {FP32: "*fp32", BF16: "*bf16", E4M3: "*fp8e4nv", E4M3_BYTES: "*u8"}
    cases = {  # kind, whose scale, tiles, guarded
        "bf16, guarded": (BF16, NO_SCALE, 1, True),
        "e4m3, a scale for each 128, guarded": (E4M3, BY_TILE, 4, True),
        "e4m3 as bytes, one scale": (E4M3_BYTES, ONE, 1, False),
        "fp32": (FP32, NO_SCALE, 1, False),
    }
    found = []
    for name, (kind, scale, tiles, guarded) in cases.items():
        wide = kind == FP32
        rope_kind = BF16 if scale == BY_TILE else kind
        number = "*fp32" if wide else "*bf16"
        types = {"latent": pages[kind], "rope": pages[rope_kind], "scale": "*fp32"}
        types |= dict.fromkeys(("up", "keys", "values"), number)
        types |= dict.fromkeys(("pages", "lengths", "own", "stamps", "expected", "faults", "sound"), "*i32")
        numbers = dict.fromkeys(("columns", "own_columns", "first_head", "heads"), "i32")
        constants = _sizes(128, 128, 512, 64, tiles, wide)
        constants |= {"KIND": kind, "ROPE_KIND": rope_kind, "SCALE": scale, "GUARDED": guarded}
        found.append(
            Signature(
                f"latent_prefill {name}", _expand, types | numbers, constants, needs_fp8=kind == E4M3,
                lacks_fp8=kind == E4M3_BYTES, aligned=tuple(types), **_OPTIONS,
            )
        )  # fmt: skip
    return found
