"""Causal grouped-query attention over pages, with an order of summation that nothing around a query can change.

For a query at position t over keys t - window < s <= t, in blocks b of KEY_BLOCK keys:

    S = scaling * (q . k_s) * k_scale_s        with a soft cap:      S = cap * tanh(S / cap)
    m_b = max S                                p = exp(S - m_b)      l_b = sum p        o_b = (p * v_scale) v
    m = max m_b        w_b = exp(m_b - m)      out = (sum w_b o_b) / (sum w_b l_b), b ascending

A head's sink s is a score without a key: m = max(s, max m_b), and the denominator gets exp(s - m) on top.

The keys of a block are those of fixed positions, whatever else is in the batch. All is fp32, but where queries are bf16
and pages narrower than fp32: there p * v_scale is rounded to bf16, and o_b, accumulated in fp32, is too. Exponentials
are taken of base 2, which torch has faster: exp(x) = 2^(x log2 e).

A masked key adds exactly zero, and so does a block that is masked as a whole or that the query's tile does not have;
where keys are padded the block's first one stands, so that what nobody wrote is never read. A row of torch's products
has the same bits beside any number of other rows from MIN_ROWS on. So neighbours in the batch, chunk borders and prefix
hits leave every bit as it is: torch's scaled_dot_product_attention does not have that property.
"""

from collections.abc import Callable
from math import e, log2

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import e4m3_as_bf16
from .int8 import dequantize_int8
from .tiles import KEY_BLOCK, MIN_ROWS, Reads, Tiles

LOG2_E = log2(e)


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
    sinks: Tensor | None = None,
    check: Callable[[], None] | None = None,
) -> Tensor:
    """Attention of a packed batch over one layer's pages.

    Args:
        q: Shape: (tokens, heads, head_dim).
        k_pages: Shape: (slots, kv_heads, head_dim); fp32, bf16, float8_e4m3fn or int8. `v_pages` alike.
        k_scale: None, scalar, or shape (kv_heads,) or (slots, kv_heads); fp32. `v_scale` alike.
        tiles: Which queries read which slots.
        scaling: Softmax scale.
        window: Keys that a query reads, its own the last; None: all up to its own.
        softcap: Bound that scores approach, above 0; None: no bound.
        sinks: Shape: (heads,); None: no sinks.
        check: Compares the stamps of all slots of `tiles` (`stamps.sound_slots`); called before any of them is read.

    Returns:
        Shape: (tokens, heads, head_dim), dtype of `q`.
    """
    ran("paged_attention.torch")
    if check is not None:
        check()
    heads, head_dim = q.shape[1:]
    kv_heads = k_pages.shape[1]
    reads = tiles.reads(window, kv_heads, heads // kv_heads)
    narrow = torch.float32 if torch.float32 in (q.dtype, v_pages.dtype) else torch.bfloat16
    query = query_cells(q, tiles, kv_heads).mul_(scaling * LOG2_E if softcap is None else scaling / softcap)
    results, rows = sum(len(read.cells) for read in reads.parts), query.shape[1]
    out = torch.empty((results + 1, rows, head_dim), dtype=narrow)
    total, peak = query.new_empty((2, results + 1, rows, 1))
    out[-1], total[-1], peak[-1] = 0, 0, -torch.inf
    stop = 0
    for read in reads.parts:
        start, stop = stop, stop + len(read.cells)
        key = _read(k_pages, read.slots, torch.float32)
        scores = torch.bmm(query.index_select(0, read.cells).view(len(key), -1, head_dim), key.transpose(1, 2))
        _scale_keys(scores, k_scale, read.slots)
        if softcap is not None:
            scores.tanh_().mul_(softcap * LOG2_E)
        if read.bound is not None:
            scores.view(len(read.slots), kv_heads, -1, KEY_BLOCK).clamp_(max=read.bound)
        found = (len(key), scores.shape[1], -1)
        highest = torch.amax(scores, dim=-1, keepdim=True, out=peak[start:stop].view(found))
        weights = scores.sub_(highest).exp2_()
        torch.sum(weights, dim=-1, keepdim=True, out=total[start:stop].view(found))
        _scale_keys(weights, v_scale, read.slots)
        torch.bmm(weights.to(narrow), _read(v_pages, read.slots, narrow), out=out[start:stop].view(found))
    sink = None if sinks is None else _sink_cells(sinks, len(tiles.rows), kv_heads, rows)
    return packed(merge(out, total, peak, reads, sink), tiles, heads).to(q.dtype)


def query_cells(q: Tensor, tiles: Tiles, kv_heads: int) -> Tensor:
    """Queries by cell, in fp32. Shape: (tokens, heads, head_dim) -> (tiles * kv_heads, rows, head_dim)."""
    n_tiles, tile_rows = tiles.rows.shape
    heads, head_dim = q.shape[1:]
    group = heads // kv_heads
    cells = torch.zeros(n_tiles, kv_heads, max(tile_rows * group, MIN_ROWS), head_dim)
    filled = cells[:, :, : tile_rows * group].view(n_tiles, kv_heads, tile_rows, group, head_dim)
    filled.copy_(q[tiles.rows].view(n_tiles, tile_rows, kv_heads, group, head_dim).transpose(1, 2))
    return cells.view(n_tiles * kv_heads, -1, head_dim)


def _sink_cells(sinks: Tensor, n_tiles: int, kv_heads: int, rows: int) -> Tensor:
    """Sinks as scores in base 2 of each cell's rows. Shape: (heads,) -> (tiles * kv_heads, rows, 1)."""
    by_head = sinks.float().mul(LOG2_E).view(kv_heads, -1)
    repeated = by_head.repeat(n_tiles, -(-rows // by_head.shape[1]))
    return repeated[:, :rows, None]


def packed(cells: Tensor, tiles: Tiles, heads: int) -> Tensor:
    """Back from `query_cells`. Shape: (tiles * kv_heads, rows, head_dim) -> (tokens, heads, head_dim)."""
    n_tiles, tile_rows = tiles.rows.shape
    kv_heads, head_dim = len(cells) // n_tiles, cells.shape[2]
    by_head = cells[:, : tile_rows * heads // kv_heads].view(n_tiles, kv_heads, tile_rows, -1, head_dim)
    return by_head.transpose(1, 2).reshape(-1, heads, head_dim)[tiles.flat]


def merge(out: Tensor, total: Tensor, peak: Tensor, reads: Reads, sink: Tensor | None) -> Tensor:
    """Blocks' results to cells' results. Shape: (results + 1, rows, ...) -> (cells, rows, ...), fp32."""
    out, total, peak = (t.index_select(0, reads.order).unflatten(0, (reads.ranks, -1)) for t in (out, total, peak))
    highest = peak.amax(dim=0) if sink is None else torch.maximum(peak.amax(dim=0), sink)
    weight = peak.sub_(highest).exp2_()
    merged, whole = out[0] * weight[0], total[0] * weight[0]
    for rank in range(1, reads.ranks):
        merged.addcmul_(out[rank], weight[rank])
        whole.addcmul_(total[rank], weight[rank])
    if sink is not None:
        whole.add_((sink - highest).exp2_())
    return merged.div_(whole)


def _read(pages: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Pages at `slots`, unscaled. Shape: (blocks, KEY_BLOCK) -> (blocks * kv_heads, KEY_BLOCK, head_dim)."""
    n_blocks, (kv_heads, head_dim) = len(slots), pages.shape[1:]
    raw = pages.view(len(pages), -1)
    if pages.dtype == torch.float8_e4m3fn:
        picked = e4m3_as_bf16(raw.view(torch.uint8).index_select(0, slots.view(-1)).view(torch.float8_e4m3fn))
    else:
        picked = raw.index_select(0, slots.view(-1))
        picked = dequantize_int8(picked) if picked.dtype == torch.int8 else picked
    out = torch.empty((n_blocks, kv_heads, KEY_BLOCK, head_dim), dtype=dtype)
    out.copy_(picked.view(n_blocks, KEY_BLOCK, kv_heads, head_dim).transpose(1, 2))
    return out.view(n_blocks * kv_heads, KEY_BLOCK, head_dim)


def _scale_keys(scores: Tensor, scale: Tensor | None, slots: Tensor) -> None:
    """Multiplies scores of shape (blocks * kv_heads, rows, KEY_BLOCK) in place by each key's scale."""
    if scale is None:
        return
    if scale.ndim == 1:
        scale = scale[:, None, None]
    elif scale.ndim == 2:
        scale = scale.index_select(0, slots.view(-1)).view(len(slots), KEY_BLOCK, -1).transpose(1, 2)[:, :, None]
    scores.view(len(slots), -1, *scores.shape[1:]).mul_(scale)
