"""Causal grouped-query attention over pages, with an order of summation that nothing around a query can change.

For a query at position t over keys s <= t, in blocks of KEY_BLOCK keys with a running maximum m and sum l:

    S = scaling * (q . k_s) * k_scale_s        m' = max(m, max S)         p = exp(S - m')
    l = l * exp(m - m') + sum p                o = o * exp(m - m') + (p * v_scale) v        out = o / l

Queries are computed in tiles of a fixed number of rows and keys in blocks of a fixed number. A masked key adds exactly
zero; where keys are padded the tile's first one stands, so that what nobody wrote is never read. So neighbours in the
batch, chunk borders and prefix hits leave every bit as it is: torch's scaled_dot_product_attention does not have that
property.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import e4m3_as_bf16

KEY_BLOCK = 128


@dataclass(frozen=True)
class Tiles:
    """Queries of a packed batch cut into tiles, longest context first.

    Attributes:
        rows: Shape: (tiles, tile_rows); index of each query in the packed batch, 0 where padded.
        positions: Shape: (tiles, tile_rows); position of each query, any position of the tile where padded.
        slots: Shape: (tiles, padded keys), a multiple of KEY_BLOCK; slot of each key, where padded that of
            the first one: every slot named here was written.
        contexts: Keys that each tile may read, descending.
        flat: Shape: (tokens,); where each packed query lies in the flattened tiles.
    """

    rows: Tensor
    positions: Tensor
    slots: Tensor
    contexts: tuple[int, ...]
    flat: Tensor

    @cached_property
    def blocks(self) -> list["KeyBlock"]:
        """The blocks of keys, what is hidden in each worked out once for all layers."""
        return [self._block(start) for start in range(0, self.contexts[0], KEY_BLOCK)]

    def _block(self, start: int) -> "KeyBlock":
        active = sum(context > start for context in self.contexts)
        keys = torch.arange(start, start + KEY_BLOCK, device=self.positions.device)
        readable = keys <= self.positions[:active, :, None]  # (active, tile_rows, KEY_BLOCK)
        open_tiles = readable.view(active, -1).all(dim=1).tolist()
        plain = open_tiles.index(False) if False in open_tiles else active
        return KeyBlock(self.slots[:active, start : start + KEY_BLOCK], active, plain, ~readable[plain:])


@dataclass(frozen=True)
class KeyBlock:
    """KEY_BLOCK keys of every tile that reaches so far.

    Attributes:
        slots: Shape: (active, KEY_BLOCK).
        active: Tiles that read the block: the first ones, since tiles are sorted.
        plain: Of these, how many leading ones read all of it.
        hidden: Shape: (active - plain, tile_rows, KEY_BLOCK); keys that a query may not read.
    """

    slots: Tensor
    active: int
    plain: int
    hidden: Tensor


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
    for block in tiles.blocks:
        rows = block.active * kv_heads
        scores = torch.bmm(query[:rows], _read(k_pages, block.slots).transpose(1, 2))
        _scale_keys(scores, k_scale, block)
        hidden = block.hidden.repeat_interleave(group, dim=1)[:, None]
        scores.view(block.active, kv_heads, -1, KEY_BLOCK)[block.plain :].masked_fill_(hidden, -torch.inf)
        highest = torch.maximum(peak[:rows], scores.amax(dim=-1, keepdim=True))
        shrink = (peak[:rows] - highest).exp_()
        weights = scores.sub_(highest).exp_()
        total[:rows] = total[:rows] * shrink + weights.sum(dim=-1, keepdim=True)
        _scale_keys(weights, v_scale, block)
        out[:rows] = out[:rows] * shrink + torch.bmm(weights, _read(v_pages, block.slots))
        peak[:rows] = highest
    out = (out / total).view(n_tiles, kv_heads, tile_rows, group, head_dim).permute(0, 2, 1, 3, 4)
    return out.reshape(n_tiles * tile_rows, heads, head_dim)[tiles.flat].to(q.dtype)


def _read(pages: Tensor, slots: Tensor) -> Tensor:
    """Pages at `slots` in fp32, unscaled. Shape: (tiles * kv_heads, keys, head_dim), contiguous."""
    n_tiles, n_keys = slots.shape
    kv_heads, head_dim = pages.shape[1:]
    raw = pages.view(pages.shape[0], -1)
    if pages.dtype == torch.float8_e4m3fn:
        picked = e4m3_as_bf16(raw.view(torch.uint8).index_select(0, slots.reshape(-1)).view(torch.float8_e4m3fn))
    else:
        picked = raw.index_select(0, slots.reshape(-1))
    out = torch.empty((n_tiles, kv_heads, n_keys, head_dim), dtype=torch.float32, device=pages.device)
    out.copy_(picked.view(n_tiles, n_keys, kv_heads, head_dim).transpose(1, 2))
    return out.view(n_tiles * kv_heads, n_keys, head_dim)


def _scale_keys(scores: Tensor, scale: Tensor | None, block: KeyBlock) -> None:
    """Multiplies scores of shape (active * kv_heads, rows, KEY_BLOCK) in place by each key's scale."""
    if scale is None:
        return
    if scale.ndim == 0:
        scores.mul_(scale)
        return
    per_key = scale.index_select(0, block.slots.reshape(-1)).view(block.active, KEY_BLOCK, -1).transpose(1, 2)
    scores.view(block.active, per_key.shape[1], -1, KEY_BLOCK).mul_(per_key[:, :, None])
