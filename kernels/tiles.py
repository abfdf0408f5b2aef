"""Which queries read which blocks of keys, worked out once a step for all layers.

Queries lie in tiles of a fixed number of rows, keys in blocks of KEY_BLOCK at fixed positions. A block that several
tiles need, of one sequence or of many that share its pages, is read once and multiplied by all their rows together.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

KEY_BLOCK = 128
MIN_ROWS = 4
MASKED = -1e30
_MOST_BLOCKS, _MOST_ROWS = 12, 1024  # of one read: what it multiplies stays in the processor's caches


@dataclass(frozen=True)
class Read:
    """Some blocks of keys, each read by the same number of tiles.

    A cell is a tile and a head of keys; its queries are tile_rows * group rows, padded to MIN_ROWS.

    Attributes:
        slots: Shape: (blocks, KEY_BLOCK).
        cells: Shape: (blocks * kv_heads * tiles,); whose queries read, as tile * kv_heads + head.
        bound: Shape: (blocks, 1, tiles * rows, KEY_BLOCK), fp32; most that a score may be: MASKED where the query does
            not see the key, else infinity; None: every query sees every key.
    """

    slots: Tensor
    cells: Tensor
    bound: Tensor | None


@dataclass(frozen=True)
class Reads:
    """All reads of a batch.

    Attributes:
        parts: In any order.
        ranks: Most blocks that a cell reads.
        order: Shape: (ranks * cells,); where the result of each cell's first, second, ... block lies among the
            results of all parts; behind all of them where the cell has no such block.
    """

    parts: tuple[Read, ...]
    ranks: int
    order: Tensor


@dataclass(frozen=True)
class Tiles:
    """Queries of a packed batch cut into tiles, and the blocks of keys before or at them.

    Attributes:
        rows: Shape: (tiles, tile_rows); index of each query in the packed batch, 0 where padded.
        positions: Shape: (tiles, tile_rows), ascending; position of each query, where padded the last one.
        flat: Shape: (tokens,); where each packed query lies in the flattened tiles.
        slots: Shape: (blocks, KEY_BLOCK); slot of each key, where padded that of the block's first one: every
            slot named here was written.
        starts: Position of each block's first key.
        readers: By block, the tiles that read it unless a window keeps them from it.
    """

    rows: Tensor
    positions: Tensor
    flat: Tensor
    slots: Tensor
    starts: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    _reads: dict[tuple[int | None, int, int], Reads] = field(default_factory=dict, init=False, repr=False)

    def reads(self, window: int | None, kv_heads: int, group: int) -> Reads:
        """What layers read that have this window, so many heads of keys, and `group` times as many of queries."""
        key = (window, kv_heads, group)
        if key not in self._reads:
            self._reads[key] = self._plan(*key)
        return self._reads[key]

    def _plan(self, window: int | None, kv_heads: int, group: int) -> Reads:
        n_tiles, tile_rows = self.rows.shape
        unseen = [-1 if window is None else first - window for first in self.positions[:, 0].tolist()]
        ranks = [0] * n_tiles
        alike: dict[int, list[tuple[int, list[int], list[int]]]] = defaultdict(list)
        for block in sorted(range(len(self.starts)), key=self.starts.__getitem__):
            last = self.starts[block] + KEY_BLOCK - 1
            readers = [tile for tile in self.readers[block] if last > unseen[tile]]
            if readers:
                alike[len(readers)].append((block, readers, [ranks[tile] for tile in readers]))
            for tile in readers:
                ranks[tile] += 1
        parts, places = [], []
        for n_readers, entries in alike.items():
            most = min(max(_MOST_ROWS // (n_readers * tile_rows), 1), _MOST_BLOCKS)
            for first in range(0, len(entries), most):
                some = zip(*entries[first : first + most], strict=True)
                blocks, readers, rank = (torch.tensor(part) for part in some)
                cells = readers[:, None] * kv_heads + torch.arange(kv_heads)[:, None]  # (blocks, kv_heads, tiles)
                places.append((rank[:, None] * (n_tiles * kv_heads) + cells).view(-1))
                parts.append(Read(self.slots[blocks], cells.view(-1), self._bound(blocks, readers, window, group)))
        place = torch.cat(places)
        order = torch.full((max(ranks) * n_tiles * kv_heads,), len(place))
        order[place] = torch.arange(len(place))
        return Reads(tuple(parts), max(ranks), order)

    def _bound(self, blocks: Tensor, readers: Tensor, window: int | None, group: int) -> Tensor | None:
        keys = torch.tensor(self.starts)[blocks][:, None, None, None] + torch.arange(KEY_BLOCK)
        positions = self.positions[readers][..., None]  # (blocks, tiles, tile_rows, 1)
        all_seen = bool((keys[..., -1:] <= positions[:, :, :1]).all())
        if window is not None:
            all_seen &= bool((keys[..., :1] > positions[:, :, -1:] - window).all())
        if all_seen:
            return None
        hidden = keys > positions
        if window is not None:
            hidden |= keys <= positions - window
        return bound_of(hidden, group)


def bound_of(hidden: Tensor, group: int) -> Tensor:
    """`Read.bound` of what is hidden: shape (blocks, tiles, tile_rows, KEY_BLOCK), bool."""
    bound = torch.where(hidden, MASKED, torch.inf).repeat_interleave(group, dim=2)
    bound = functional.pad(bound, (0, 0, 0, max(MIN_ROWS - bound.shape[2], 0)), value=torch.inf)
    return bound.view(len(hidden), 1, -1, KEY_BLOCK)
