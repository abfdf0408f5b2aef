"""A packed batch: tokens of several sequences side by side, and the tiles in which attention computes them."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evalsvc.kernels.paged_attention import KEY_BLOCK, Tiles

from .kv.pool import KVPool, PoolFull, Sequence


@dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence.

    Attributes:
        sequence: Already holds everything before these tokens.
        tokens: Ids to compute now, at least one.
        logits: How many of the last tokens need logits.
    """

    sequence: Sequence
    tokens: Seq[int]
    logits: int = 1


@dataclass(frozen=True)
class PackedBatch:
    """Inputs of one forward; shapes are (tokens,) unless said.

    Attributes:
        logit_rows: Rows whose logits are wanted, chunk after chunk.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    tiles: Tiles
    logit_rows: Tensor


def pack(pool: KVPool, chunks: Seq[Chunk], tile_rows: int) -> PackedBatch:
    """Reserves slots for the chunks and lays out their tiles.

    Args:
        pool: Where the sequences live.
        chunks: Each sequence at most once.
        tile_rows: Queries in a tile, the same for every batch of a stage.

    Raises:
        PoolFull: Not enough pages; every sequence is as it was.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    spans: list[tuple[int, int, int, Sequence]] = []  # (context, first row, first position, sequence)
    before = [chunk.sequence.length for chunk in chunks]
    try:
        for chunk, start in zip(chunks, before, strict=True):
            slots += pool.extend(chunk.sequence, len(chunk.tokens))
            row, stop = len(token_ids), start + len(chunk.tokens)
            token_ids += chunk.tokens
            positions += range(start, stop)
            logit_rows += range(len(token_ids) - chunk.logits, len(token_ids))
            for first in range(start, stop, tile_rows):
                spans.append((min(first + tile_rows, stop), row + first - start, first, chunk.sequence))
    except PoolFull:
        for chunk, start in zip(chunks, before, strict=True):
            pool.truncate(chunk.sequence, start)
        raise
    return PackedBatch(
        torch.tensor(token_ids),
        torch.tensor(positions),
        torch.tensor(slots),
        _tiles(spans, tile_rows, len(token_ids)),
        torch.tensor(logit_rows, dtype=torch.long),
    )


def never_one_row(batch: PackedBatch) -> PackedBatch:
    """The same batch, with its only token, or its only wanted row of logits, put in twice.

    torch's bf16 product of a single row sums in another order than that of two and more (1 element of a 1536 -> 576
    product differed by a rounding, from 2 to 512 rows none did), so that who decodes alone would get other bits than
    in company. Up to 4096 multiplications torch takes a third way: two rows are past it once in * out > 2048.
    """
    rows = batch.logit_rows.repeat(2) if len(batch.logit_rows) == 1 else batch.logit_rows
    if len(batch.token_ids) > 1:
        return replace(batch, logit_rows=rows)
    ids, positions, slots, flat = (
        t.repeat(2) for t in (batch.token_ids, batch.positions, batch.slots, batch.tiles.flat)
    )
    return PackedBatch(ids, positions, slots, replace(batch.tiles, flat=flat), rows)


def _tiles(spans: list[tuple[int, int, int, Sequence]], tile_rows: int, n_tokens: int) -> Tiles:
    spans = sorted(spans, key=lambda span: -span[0])
    width = -(-spans[0][0] // KEY_BLOCK) * KEY_BLOCK
    rows = torch.zeros(len(spans), tile_rows, dtype=torch.long)
    positions = torch.zeros(len(spans), tile_rows, dtype=torch.long)
    slots = torch.empty(len(spans), width, dtype=torch.long)
    flat = torch.empty(n_tokens, dtype=torch.long)
    for i, (context, row, first, sequence) in enumerate(spans):
        count = context - first
        rows[i, :count] = torch.arange(row, row + count)
        positions[i] = torch.arange(first, first + tile_rows).clamp_(max=context - 1)
        slots[i, :context] = torch.tensor(sequence.slots(0, context))
        slots[i, context:] = slots[i, 0]
        flat[row : row + count] = torch.arange(i * tile_rows, i * tile_rows + count)
    first_keys = torch.zeros(len(spans), dtype=torch.long)
    return Tiles(rows, positions, slots, first_keys, tuple(span[0] for span in spans), flat)
