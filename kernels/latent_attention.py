"""Causal attention over pages of latents, in its two forms.

A page keeps of a token the normalised latent c and the rope key r that all heads share. With W_uk and W_uv a head's
halves of the matrix that expands a latent, for a query (q_n, q_r):

    expanded:   S_s = scaling * (q_n . W_uk c_s + q_r . r_s)       out = sum p_s (W_uv c_s)
    absorbed:   q_c = W_uk^T q_n
                S_s = scaling * (q_c . c_s + q_r . r_s)            o_c = sum p_s c_s        out = W_uv o_c

Expanded, each key is multiplied out once for all queries of a batch, which many queries of a prompt pay back; absorbed,
the heads of a query share one key of rank + rope numbers, of which the first rank are its value.

A row is read as stored: code times scale, rounded to the type of the queries unless pages are fp32. Scores, weights and
sums are those of `paged_attention`, block by block in the same fixed order: nothing around a query changes its bits.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .dispatch import ran
from .fp8 import dequantize_e4m3
from .paged_attention import LOG2_E, merge, packed, query_cells
from .sparse_index import Selection
from .tiles import KEY_BLOCK, MIN_ROWS, Tiles

_ReadBlocks = Callable[[Tensor], tuple[Tensor, Tensor]]


def latent_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    tiles: Tiles,
    scaling: float,
    selection: Selection | None = None,
) -> Tensor:
    """The absorbed form: all heads read one latent.

    Args:
        q_latent: Queries as latents, `absorb`'s. Shape: (tokens, heads, rank).
        q_rope: Shape: (tokens, heads, rope).
        latent_pages: One layer's. Shape: (slots, rank); fp32, bf16 or float8_e4m3fn.
        rope_pages: Shape: (slots, rope); as `latent_pages`, but bf16 where scales are those of tiles.
        scale: fp32; None for fp32 and bf16 pages. One for latents and rope keys alike: a scalar. One for each tile of
            a latent: shape (slots, tiles), and none for rope keys.
        tiles: Which queries read which slots.
        scaling: Softmax scale.
        selection: Keys that each query reads, where it does not read all before it.

    Returns:
        Weighted sums of latents. Shape: (tokens, heads, rank), dtype of `q_latent`.
    """
    ran("latent_attention.torch")
    heads, rank = q_latent.shape[1:]
    narrow = narrow_type(q_latent, latent_pages)

    def read(slots: Tensor) -> tuple[Tensor, Tensor]:
        latent, rope = read_rows(latent_pages, rope_pages, scale, slots.view(-1), narrow)
        key = torch.cat([latent, rope], dim=-1).view(-1, KEY_BLOCK, rank + rope.shape[-1])
        return key.float(), latent.view(-1, KEY_BLOCK, rank)

    query = query_cells(torch.cat([q_latent, q_rope], dim=-1), tiles, 1).mul_(scaling * LOG2_E)
    return packed(_over_blocks(query, tiles, read, rank, narrow, 1, heads, selection), tiles, heads).to(q_latent.dtype)


def expanded_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    rope_pages: Tensor,
    scale: Tensor | None,
    up: Tensor,
    tiles: Tiles,
    scaling: float,
    selection: Selection | None = None,
) -> Tensor:
    """The expanded form: every head's own keys and values of a block, made of its latents when it is read.

    Args:
        q_nope: Shape: (tokens, heads, nope).
        up: What expands a latent: W_uk over W_uv of each head. Shape: (heads, nope + v, rank), contiguous.
        q_rope: As in `latent_attention`; so are the other arguments.

    Returns:
        Shape: (tokens, heads, v), dtype of `q_nope`.
    """
    ran("latent_attention_expanded.torch")
    heads, nope = q_nope.shape[1:]
    narrow = narrow_type(q_nope, latent_pages)
    width = up.shape[1] - nope
    matrix = up.flatten(0, 1).to(narrow)

    def read(slots: Tensor) -> tuple[Tensor, Tensor]:
        latent, rope = read_rows(latent_pages, rope_pages, scale, slots.view(-1), narrow)
        expanded = functional.linear(latent, matrix).view(len(slots), KEY_BLOCK, heads, nope + width).transpose(1, 2)
        key = torch.empty((len(slots), heads, KEY_BLOCK, nope + rope.shape[-1]))
        key[..., :nope] = expanded[..., :nope]
        key[..., nope:] = rope.view(len(slots), 1, KEY_BLOCK, -1)
        value = expanded[..., nope:].reshape(-1, KEY_BLOCK, width)
        return key.view(-1, KEY_BLOCK, key.shape[-1]), value

    query = query_cells(torch.cat([q_nope, q_rope], dim=-1), tiles, heads).mul_(scaling * LOG2_E)
    return packed(_over_blocks(query, tiles, read, width, narrow, heads, 1, selection), tiles, heads).to(q_nope.dtype)


def absorb(q_nope: Tensor, up: Tensor) -> Tensor:
    """Queries as latents: q W_uk. Shape: (tokens, heads, nope), (heads, nope + v, rank) -> (tokens, heads, rank)."""
    return _by_head(q_nope, up[:, : q_nope.shape[2]])


def release(o_latent: Tensor, up: Tensor, nope: int) -> Tensor:
    """Sums of latents as heads' outputs: o W_uv^T. Shape: (tokens, heads, rank) -> (tokens, heads, v)."""
    return _by_head(o_latent, up[:, nope:].transpose(1, 2))


def read_rows(
    latent_pages: Tensor, rope_pages: Tensor, scale: Tensor | None, slots: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Latents and rope keys of some slots as stored, in `dtype`. Shape: (slots,) -> (slots, rank), (slots, rope)."""
    latent, rope = (_codes(pages, slots) for pages in (latent_pages, rope_pages))
    if scale is None:
        return latent.to(dtype), rope.to(dtype)
    if scale.ndim == 0:
        return (latent * scale).to(dtype), (rope * scale).to(dtype)
    tiled = latent.unflatten(-1, (scale.shape[1], -1)) * scale.index_select(0, slots)[..., None]
    return tiled.flatten(-2).to(dtype), rope.to(dtype)


def _codes(pages: Tensor, slots: Tensor) -> Tensor:
    if pages.dtype != torch.float8_e4m3fn:
        return pages.index_select(0, slots)
    return dequantize_e4m3(pages.view(torch.uint8).index_select(0, slots).view(torch.float8_e4m3fn))


def narrow_type(q: Tensor, pages: Tensor) -> torch.dtype:
    """What rows, keys and values are rounded to."""
    return torch.float32 if torch.float32 in (q.dtype, pages.dtype) else torch.bfloat16


def _by_head(x: Tensor, matrices: Tensor) -> Tensor:
    """x (tokens, heads, in) times matrices (heads, in, out); from MIN_ROWS on a row's bits are its own."""
    company = functional.pad(x, (0, 0, 0, 0, 0, max(MIN_ROWS - len(x), 0)))
    return torch.bmm(company.transpose(0, 1), matrices).transpose(0, 1)[: len(x)]


def _over_blocks(
    query: Tensor,
    tiles: Tiles,
    read: _ReadBlocks,
    width: int,
    narrow: torch.dtype,
    kv_heads: int,
    group: int,
    selection: Selection | None,
) -> Tensor:
    """As the loop of `paged_attention`.

    Args:
        query: By cell, in base 2. Shape: (tiles * kv_heads, rows, key numbers).
        read: Slots of shape (blocks, KEY_BLOCK) -> fp32 keys of shape (blocks * kv_heads, KEY_BLOCK, key numbers) and
            narrow values of shape (blocks * kv_heads, KEY_BLOCK, width).
        group: Heads of queries to each head of keys.

    Returns:
        Shape: (tiles * kv_heads, rows, width), fp32.
    """
    reads = tiles.reads(None, kv_heads, group)
    results, rows = sum(len(part.cells) for part in reads.parts), query.shape[1]
    out = torch.empty((results + 1, rows, width), dtype=narrow)
    total, peak = query.new_empty((2, results + 1, rows, 1))
    out[-1], total[-1], peak[-1] = 0, 0, -torch.inf
    stop = 0
    for number, part in enumerate(reads.parts):
        start, stop = stop, stop + len(part.cells)
        key, value = read(part.slots)
        asking = query.index_select(0, part.cells).view(len(key), -1, query.shape[2])
        scores = torch.bmm(asking, key.transpose(1, 2))
        bound = part.bound if selection is None else selection.bound(number, group)
        if bound is not None:
            scores.view(len(part.slots), kv_heads, -1, KEY_BLOCK).clamp_(max=bound)
        found = (len(key), scores.shape[1], -1)
        highest = torch.amax(scores, dim=-1, keepdim=True, out=peak[start:stop].view(found))
        weights = scores.sub_(highest).exp2_()
        torch.sum(weights, dim=-1, keepdim=True, out=total[start:stop].view(found))
        torch.bmm(weights.to(narrow), value, out=out[start:stop].view(found))
    return merge(out, total, peak, reads, None)
