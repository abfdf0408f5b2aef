"""Causal grouped-query attention over pages, with an order of summation that nothing around a query can change.

For a query at position t over keys s <= t, in blocks of KEY_BLOCK keys with a running maximum m and sum l:

    S = scaling * (q . k_s) * k_scale_s        m' = max(m, max S)         p = exp(S - m')
    l = l * exp(m - m') + sum p                o = o * exp(m - m') + (p * v_scale) v        out = o / l

Queries are computed in tiles of a fixed number of rows and keys in blocks of a fixed number, padded; a masked key adds
exactly zero. So neighbours in the batch, chunk borders and prefix hits leave every bit as it is: torch's
scaled_dot_product_attention does not have that property.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import dequantize_e4m3

KEY_BLOCK = 128


@dataclass(frozen=True)
class Tiles:
    """Queries of a packed batch cut into tiles, longest context first.

    Attributes:
        rows: Shape: (tiles, tile_rows); index of each query in the packed batch, 0 where padded.
        positions: Shape: (tiles, tile_rows); position of each query, 0 where padded.
        slots: Shape: (tiles, padded keys), a multiple of KEY_BLOCK; slot of each key, 0 where padded.
        contexts: Keys that each tile may read, descending.
        flat: Shape: (tokens,); where each packed query lies in the flattened tiles.
    """

    rows: Tensor
    positions: Tensor
    slots: Tensor
    contexts: tuple[int, ...]
    flat: Tensor


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    tiles: Tiles,
    scaling: float,
) -> Tensor:
    """Attention of a packed batch over one layer's pages; fp32 arithmetic.

    Args:
        q: Shape: (tokens, heads, head_dim).
        k_pages: Shape: (slots, kv_heads, head_dim); fp32, bf16 or float8_e4m3fn. `v_pages` alike.
        k_scale: None, scalar, or shape (slots, kv_heads); fp32. `v_scale` alike.
        tiles: Which queries read which slots.
        scaling: Softmax scale.

    Returns:
        Shape: (tokens, heads, head_dim), dtype of `q`.
    """
    ran("paged_attention.torch")
    n_tiles, tile_rows = tiles.rows.shape
    heads, head_dim = q.shape[1:]
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    query = q[tiles.rows].float().mul_(scaling).view(n_tiles, tile_rows, kv_heads, group, head_dim)
    query = query.permute(0, 2, 1, 3, 4).reshape(n_tiles * kv_heads, tile_rows * group, head_dim)
    out = torch.zeros_like(query)
    total = query.new_zeros(n_tiles * kv_heads, tile_rows * group, 1)
    peak = query.new_full((n_tiles * kv_heads, tile_rows * group, 1), -torch.inf)
    for start in range(0, tiles.contexts[0], KEY_BLOCK):
        active = sum(context > start for context in tiles.contexts)
        slots = tiles.slots[:active, start : start + KEY_BLOCK]
        keys = torch.arange(start, start + KEY_BLOCK, device=q.device)
        readable = keys <= tiles.positions[:active, :, None]  # (active, tile_rows, KEY_BLOCK)
        written = readable.any(dim=1)  # a key that no query of the tile may read can hold anything, NaN included
        rows = active * kv_heads
        scores = torch.bmm(query[:rows], _read(k_pages, slots).transpose(1, 2))
        _scale_keys(scores, k_scale, slots, kv_heads)
        hidden = ~readable.repeat_interleave(group, dim=1)[:, None]
        scores.view(active, kv_heads, tile_rows * group, KEY_BLOCK).masked_fill_(hidden, -torch.inf)
        highest = torch.maximum(peak[:rows], scores.amax(dim=-1, keepdim=True))
        shrink = (peak[:rows] - highest).exp_()
        weights = scores.sub_(highest).exp_()
        total[:rows] = total[:rows] * shrink + weights.sum(dim=-1, keepdim=True)
        _scale_keys(weights, v_scale, slots, kv_heads, written)
        values = _read(v_pages, slots).view(active, kv_heads, KEY_BLOCK, head_dim)
        values.masked_fill_(~written[:, None, :, None], 0.0)
        out[:rows] = out[:rows] * shrink + torch.bmm(weights, values.view(rows, KEY_BLOCK, head_dim))
        peak[:rows] = highest
    out = (out / total).view(n_tiles, kv_heads, tile_rows, group, head_dim).permute(0, 2, 1, 3, 4)
    return out.reshape(n_tiles * tile_rows, heads, head_dim)[tiles.flat].to(q.dtype)


def _read(pages: Tensor, slots: Tensor) -> Tensor:
    """Pages at `slots` in fp32, unscaled. Shape: (tiles * kv_heads, keys, head_dim), contiguous."""
    n_tiles, n_keys = slots.shape
    kv_heads, head_dim = pages.shape[1:]
    raw = pages.view(pages.shape[0], -1)
    if pages.dtype == torch.float8_e4m3fn:
        picked = dequantize_e4m3(raw.view(torch.uint8).index_select(0, slots.reshape(-1)).view(torch.float8_e4m3fn))
    else:
        picked = raw.index_select(0, slots.reshape(-1))
    out = torch.empty((n_tiles, kv_heads, n_keys, head_dim), dtype=torch.float32, device=pages.device)
    out.copy_(picked.view(n_tiles, n_keys, kv_heads, head_dim).transpose(1, 2))
    return out.view(n_tiles * kv_heads, n_keys, head_dim)


def _scale_keys(
    scores: Tensor, scale: Tensor | None, slots: Tensor, kv_heads: int, written: Tensor | None = None
) -> None:
    """Multiplies (tiles * kv_heads, rows, keys) in place by each key's scale; unwritten keys by zero when given."""
    if scale is None:
        return
    if scale.ndim == 0:
        scores.mul_(scale)
        return
    per_key = scale.index_select(0, slots.reshape(-1)).view(*slots.shape, kv_heads).transpose(1, 2)
    if written is not None:
        per_key = per_key.masked_fill(~written[:, None], 0.0)
    scores.view(slots.shape[0], kv_heads, -1, slots.shape[1]).mul_(per_key[:, :, None])
