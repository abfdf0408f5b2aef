"""Which keys each query of sparse attention reads: the highest of its index scores.

    I(t, s) = sum_h w_h(t) * relu(scale * q_h(t) . k_s),    s <= t
    t reads the `topk` keys of highest I; of equal ones the earlier; all up to its own where there are no more than that

Products are fp32, heads are summed in ascending order: a score has the same bits whatever else is in the batch.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .dispatch import ran
from .fp8 import dequantize_e4m3
from .paged_attention import query_cells
from .tiles import KEY_BLOCK, Reads, Tiles, bound_of


@dataclass(frozen=True)
class Selection:
    """Keys that queries do not read.

    Attributes:
        hidden: By part of the batch's reads, which are the same for every number of heads. Shape of each: (blocks,
            tiles, tile_rows, KEY_BLOCK), bool.
    """

    hidden: tuple[Tensor, ...]
    _bounds: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    def bound(self, part: int, group: int) -> Tensor:
        """As `Read.bound`, for so many heads of queries to one of keys."""
        key = (part, group)
        if key not in self._bounds:
            self._bounds[key] = bound_of(self.hidden[part], group)
        return self._bounds[key]


def select_keys(
    q: Tensor, weights: Tensor, key_pages: Tensor, key_scale: Tensor | None, tiles: Tiles, scale: float, topk: int
) -> Selection | None:
    """Selects keys for every query of a packed batch.

    Args:
        q: Index queries. Shape: (tokens, index_heads, index_dim).
        weights: Of each head's score, fp32. Shape: (tokens, index_heads).
        key_pages: One layer's index keys. Shape: (slots, index_dim); fp32, bf16 or float8_e4m3fn.
        key_scale: One for each key of float8_e4m3fn. Shape: (slots,), fp32; else None.
        tiles: Which queries see which slots.
        scale: Of a head's score.
        topk: Most keys that a query reads.

    Returns:
        None where every query reads all that it sees.
    """
    ran("sparse_index.torch")
    if int(tiles.positions.max()) < topk:
        return None
    heads = q.shape[1]
    reads = tiles.reads(None, 1, heads)
    scores = _scores(q, weights, key_pages, key_scale, tiles, reads, scale)
    n_tiles, tile_rows = tiles.rows.shape
    by_rank = scores.index_select(0, reads.order).view(reads.ranks, n_tiles, tile_rows, KEY_BLOCK)
    by_key = by_rank.permute(1, 2, 0, 3).flatten(2)  # a tile's blocks have no gap: the n-th starts at n * KEY_BLOCK
    unseen = torch.arange(by_key.shape[2]) > tiles.positions[..., None]
    best = by_key.masked_fill(unseen, -torch.inf).sort(dim=-1, descending=True, stable=True).indices[..., :topk]
    hidden = torch.ones_like(unseen).scatter_(-1, best, False) | unseen
    found = torch.empty(scores.shape, dtype=torch.bool)
    found[reads.order] = hidden.unflatten(2, (reads.ranks, KEY_BLOCK)).permute(2, 0, 1, 3).flatten(0, 1)
    parts, stop = [], 0
    for part in reads.parts:
        start, stop = stop, stop + len(part.cells)
        parts.append(found[start:stop].view(len(part.slots), -1, tile_rows, KEY_BLOCK))
    return Selection(tuple(parts))


def _scores(
    q: Tensor,
    weights: Tensor,
    key_pages: Tensor,
    key_scale: Tensor | None,
    tiles: Tiles,
    reads: Reads,
    scale: float,
) -> Tensor:
    """Scores of each part's blocks and tiles, and zeros behind them. Shape: (results + 1, tile_rows, KEY_BLOCK)."""
    tile_rows, heads = tiles.rows.shape[1], q.shape[1]
    query, by_tile = query_cells(q, tiles, 1), weights[tiles.rows]
    results = sum(len(part.cells) for part in reads.parts)
    scores = torch.zeros(results + 1, tile_rows, KEY_BLOCK)
    stop = 0
    for part in reads.parts:
        start, stop = stop, stop + len(part.cells)
        key = _keys(key_pages, key_scale, part.slots.view(-1)).view(len(part.slots), KEY_BLOCK, -1)
        asking = query.index_select(0, part.cells).view(len(key), -1, query.shape[2])
        each = torch.bmm(asking, key.transpose(1, 2)).mul_(scale).relu_().view(len(part.cells), -1, KEY_BLOCK)
        each = each[:, : tile_rows * heads].unflatten(1, (tile_rows, heads))
        weight = by_tile.index_select(0, part.cells)
        for head in range(heads):
            scores[start:stop].addcmul_(each[:, :, head], weight[:, :, head, None])
    return scores


def _keys(pages: Tensor, scale: Tensor | None, slots: Tensor) -> Tensor:
    """Index keys of some slots as stored, in fp32. Shape: (slots, index_dim)."""
    if scale is None:
        return pages.index_select(0, slots).float()
    codes = pages.view(torch.uint8).index_select(0, slots).view(torch.float8_e4m3fn)
    return dequantize_e4m3(codes) * scale.index_select(0, slots)[:, None]
