"""A packed batch: tokens of several sequences side by side, and the tiles in which attention computes them."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from evalsvc.kernels.tiles import KEY_BLOCK, Tiles

from .kv.pages import PAGE, Pages, PoolFull, Sequence


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


class _Span(NamedTuple):
    """Positions first..stop-1 of a sequence, in packed rows from `row` on."""

    sequence: Sequence
    row: int
    first: int
    stop: int


class _Block(NamedTuple):
    """KEY_BLOCK keys from position `start` on, of which `written` are there."""

    start: int
    pages: list[int]
    written: int
    readers: list[int]


def pack(pool: Pages, chunks: Seq[Chunk], tile_rows: int) -> PackedBatch:
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
    spans: list[_Span] = []
    before = [chunk.sequence.length for chunk in chunks]
    try:
        for chunk, start in zip(chunks, before, strict=True):
            slots += pool.extend(chunk.sequence, len(chunk.tokens))
            row, stop = len(token_ids), start + len(chunk.tokens)
            token_ids += chunk.tokens
            positions += range(start, stop)
            logit_rows += range(len(token_ids) - chunk.logits, len(token_ids))
            for first in range(start, stop, tile_rows):
                spans.append(_Span(chunk.sequence, row + first - start, first, min(first + tile_rows, stop)))
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


def _tiles(spans: list[_Span], tile_rows: int, n_tokens: int) -> Tiles:
    rows, positions, flat = [], [], [0] * n_tokens
    for i, span in enumerate(spans):
        count, pad = span.stop - span.first, tile_rows - (span.stop - span.first)
        rows += [*range(span.row, span.row + count), *[0] * pad]
        positions += [*range(span.first, span.stop), *[span.stop - 1] * pad]
        flat[span.row : span.row + count] = range(i * tile_rows, i * tile_rows + count)
    blocks = _blocks(spans)
    slots = torch.tensor([block.pages for block in blocks])[:, :, None] * PAGE + torch.arange(PAGE)
    slots = slots.view(len(blocks), KEY_BLOCK)
    written = torch.tensor([block.written for block in blocks])[:, None]
    return Tiles(
        torch.tensor(rows).view(-1, tile_rows),
        torch.tensor(positions).view(-1, tile_rows),
        torch.tensor(flat),
        torch.where(torch.arange(KEY_BLOCK) < written, slots, slots[:, :1]),
        tuple(block.start for block in blocks),
        tuple(tuple(block.readers) for block in blocks),
    )


def _blocks(spans: list[_Span]) -> list[_Block]:
    """The blocks of keys that tiles read, those that sequences share once."""
    found: dict[tuple[int, tuple[int, ...]], _Block] = {}
    for i, span in enumerate(spans):
        for start in range(0, span.stop, KEY_BLOCK):
            written = min(span.sequence.length - start, KEY_BLOCK)
            pages = span.sequence.pages[start // PAGE : (start + KEY_BLOCK) // PAGE]
            key = (written, tuple(pages))
            if key not in found:
                found[key] = _Block(start, [*pages, *pages[:1] * (KEY_BLOCK // PAGE - len(pages))], written, [])
            found[key].readers.append(i)
    return list(found.values())
