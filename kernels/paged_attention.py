"""Causal grouped-query attention over pages, with an order of summation that nothing around a query can change.

For a query at position t over keys t - window < s <= t, in blocks of KEY_BLOCK keys with a running maximum m and sum l:

    S = scaling * (q . k_s) * k_scale_s        with a soft cap:           S = cap * tanh(S / cap)
    m' = max(m, max S)                         p = exp(S - m')            l = l * exp(m - m') + sum p
    o = o * exp(m - m') + (p * v_scale) v      out = o / l

Queries are computed in tiles of a fixed number of rows and keys in blocks of a fixed number. A masked key adds exactly
zero, and so does a block that is masked as a whole, since m starts at a finite number below every score; where keys
are padded the tile's first one stands, so that what nobody wrote is never read. Blocks that lie before the windows of
all of a tile's queries are not read. So neighbours in the batch, chunk borders and prefix hits leave every bit as it
is: torch's scaled_dot_product_attention does not have that property.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import e4m3_as_bf16
from .int8 import dequantize_int8

KEY_BLOCK = 128
_BELOW_EVERY_SCORE = -1e30


@dataclass(frozen=True)
class Tiles:
    """Queries of a packed batch cut into tiles, most keys first.

    Attributes:
        rows: Shape: (tiles, tile_rows); index of each query in the packed batch, 0 where padded.
        positions: Shape: (tiles, tile_rows); position of each query, any position of the tile where padded.
        slots: Shape: (tiles, padded keys), a multiple of KEY_BLOCK; slot of each key, where padded that of
            the first one: every slot named here was written.
        first_keys: Shape: (tiles,); position of the first key of `slots`, a multiple of KEY_BLOCK.
        counts: Keys of each tile, descending.
        flat: Shape: (tokens,); where each packed query lies in the flattened tiles.
        window: Keys that a query reads, its own the last; None: all up to its own.
    """

    rows: Tensor
    positions: Tensor
    slots: Tensor
    first_keys: Tensor
    counts: tuple[int, ...]
    flat: Tensor
    window: int | None = None
    _windowed: dict[int, "Tiles"] = field(default_factory=dict, init=False, repr=False, compare=False)

    def within(self, window: int | None) -> "Tiles":
        """The same queries reading at most `window` keys each, without the blocks of keys that none of a tile reads."""
        if window is None:
            return self
        if window not in self._windowed:
            self._windowed[window] = self._within(window)
        return self._windowed[window]

    def _within(self, window: int) -> "Tiles":
        oldest = (self.positions[:, 0] - window + 1).clamp_(min=0)
        first_keys = oldest // KEY_BLOCK * KEY_BLOCK
        device = self.positions.device
        counts = torch.tensor(self.counts, device=device) - first_keys
        order = counts.argsort(descending=True, stable=True)
        offsets = torch.arange(-(-int(counts.max()) // KEY_BLOCK) * KEY_BLOCK, device=device)
        offsets = torch.where(offsets < counts[order, None], offsets, 0)
        slots = self.slots[order].gather(1, first_keys[order, None] + offsets)
        moved = order.argsort()
        tile_rows = self.rows.shape[1]
        flat = moved[self.flat // tile_rows] * tile_rows + self.flat % tile_rows
        return Tiles(
            self.rows[order],
            self.positions[order],
            slots,
            first_keys[order],
            tuple(counts[order].tolist()),
            flat,
            window,
        )

    @cached_property
    def blocks(self) -> list["KeyBlock"]:
        """The blocks of keys, what is hidden in each worked out once for all layers."""
        return [self._block(start) for start in range(0, self.counts[0], KEY_BLOCK)]

    def _block(self, start: int) -> "KeyBlock":
        active = sum(count > start for count in self.counts)
        offsets = torch.arange(start, start + KEY_BLOCK, device=self.positions.device)
        keys = (self.first_keys[:active, None] + offsets)[:, None]
        positions = self.positions[:active, :, None]
        readable = keys <= positions  # (active, tile_rows, KEY_BLOCK)
        if self.window is not None:
            readable &= keys > positions - self.window
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
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of a packed batch over one layer's pages; fp32 arithmetic.

    Args:
        q: Shape: (tokens, heads, head_dim).
        k_pages: Shape: (slots, kv_heads, head_dim); fp32, bf16, float8_e4m3fn or int8. `v_pages` alike.
        k_scale: None, scalar, or shape (kv_heads,) or (slots, kv_heads); fp32. `v_scale` alike.
        tiles: Which queries read which slots.
        scaling: Softmax scale.
        window: Keys that a query reads, its own the last; None: all up to its own.
        softcap: Bound that scores approach, above 0; None: no bound.

    Returns:
        Shape: (tokens, heads, head_dim), dtype of `q`.
    """
    ran("paged_attention.torch")
    tiles = tiles.within(window)
    n_tiles, tile_rows = tiles.rows.shape
    heads, head_dim = q.shape[1:]
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    query = q[tiles.rows].float().mul_(scaling).view(n_tiles, tile_rows, kv_heads, group, head_dim)
    query = query.permute(0, 2, 1, 3, 4).reshape(n_tiles * kv_heads, tile_rows * group, head_dim)
    out = torch.zeros_like(query)
    total = query.new_zeros(n_tiles * kv_heads, tile_rows * group, 1)
    peak = query.new_full((n_tiles * kv_heads, tile_rows * group, 1), _BELOW_EVERY_SCORE)
    for block in tiles.blocks:
        rows = block.active * kv_heads
        scores = torch.bmm(query[:rows], _read(k_pages, block.slots).transpose(1, 2))
        _scale_keys(scores, k_scale, block)
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
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
        picked = dequantize_int8(picked) if picked.dtype == torch.int8 else picked
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
    if scale.ndim == 1:
        scores.view(block.active, len(scale), -1, KEY_BLOCK).mul_(scale[:, None, None])
        return
    per_key = scale.index_select(0, block.slots.reshape(-1)).view(block.active, KEY_BLOCK, -1).transpose(1, 2)
    scores.view(block.active, per_key.shape[1], -1, KEY_BLOCK).mul_(per_key[:, :, None])
