"""A packed batch: tokens of several sequences side by side, and the tiles in which attention computes them."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from evalsvc.kernels.page_table import PageTable
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
        stamps: Tag and position of each new token. Shape: (tokens, 2), int32.
        reading: What is read, and by whom.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    tiles: Tiles
    logit_rows: Tensor
    stamps: Tensor
    reading: "Reading"


@dataclass(frozen=True)
class Reading:
    """Every slot that attention of a batch reads, once for all chunks that share it.

    Attributes:
        slots: Shape: (read,).
        wanted: Tag and position that each must have. Shape: (read, 2), int32.
        blocks: Which block each is of. Shape: (read,).
        readers: By block the chunks that read it.
    """

    slots: Tensor
    wanted: Tensor
    blocks: Tensor
    readers: tuple[frozenset[int], ...]


class _Span(NamedTuple):
    """Positions first..stop-1 of a chunk's sequence, in packed rows from `row` on."""

    chunk: int
    sequence: Sequence
    row: int
    first: int
    stop: int


class _Block(NamedTuple):
    """KEY_BLOCK keys from position `start` on, of which `written` are there; tiles and chunks that read them."""

    start: int
    pages: list[int]
    tags: list[int]
    written: int
    readers: list[int]
    chunks: set[int]


def reserve(pool: Pages, chunks: Seq[Chunk]) -> list[list[int]]:
    """Slots for the tokens of each chunk, which count as written.

    Raises:
        PoolFull: Not enough pages; every sequence is as it was.
    """
    before = [chunk.sequence.length for chunk in chunks]
    try:
        return [pool.extend(chunk.sequence, len(chunk.tokens)) for chunk in chunks]
    except PoolFull:
        for chunk, start in zip(chunks, before, strict=True):
            pool.truncate(chunk.sequence, start)
        raise


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
    tags: list[int] = []
    logit_rows: list[int] = []
    spans: list[_Span] = []
    for index, (chunk, given) in enumerate(zip(chunks, reserve(pool, chunks), strict=True)):
        slots += given
        row, stop = len(token_ids), chunk.sequence.length
        start = stop - len(chunk.tokens)
        token_ids += chunk.tokens
        positions += range(start, stop)
        tags += [chunk.sequence.tags[position // PAGE] for position in range(start, stop)]
        logit_rows += range(len(token_ids) - chunk.logits, len(token_ids))
        for first in range(start, stop, tile_rows):
            spans.append(_Span(index, chunk.sequence, row + first - start, first, min(first + tile_rows, stop)))
    blocks = _blocks(spans)
    return PackedBatch(
        torch.tensor(token_ids),
        torch.tensor(positions),
        torch.tensor(slots),
        _tiles(spans, blocks, tile_rows, len(token_ids)),
        torch.tensor(logit_rows, dtype=torch.long),
        torch.tensor([tags, positions], dtype=torch.int32).T.contiguous(),
        _reading(blocks),
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
    tiles, stamps = replace(batch.tiles, flat=flat), batch.stamps.repeat(2, 1)
    return PackedBatch(ids, positions, slots, tiles, rows, stamps, batch.reading)


def tables(batch: PackedBatch, chunks: Seq[Chunk]) -> tuple[PageTable, Tensor]:
    """The chunks' pages as kernels read them, and the tags that these are to have.

    Args:
        batch: What was packed of the chunks. Where `never_one_row` put their only token in twice, so is its sequence.

    Returns:
        The table, and tags of its shape, int32.
    """
    sequences, counts = [chunk.sequence for chunk in chunks], [len(chunk.tokens) for chunk in chunks]
    if len(batch.token_ids) != sum(counts):
        sequences, counts = sequences * 2, counts * 2
    table = PageTable.of([s.pages for s in sequences], [s.length for s in sequences], counts, str(batch.slots.device))
    columns = table.pages.shape[1]
    tags = [[*s.tags[: len(s.pages)], *[0] * (columns - len(s.pages))] for s in sequences]
    return table, torch.tensor(tags, dtype=torch.int32)


def reading(sequences: Seq[Sequence]) -> Reading:
    """What a decode step of these sequences reads, their new tokens written."""
    return _reading(_blocks([_Span(i, s, i, s.length - 1, s.length) for i, s in enumerate(sequences)]))


def _reading(blocks: list[_Block]) -> Reading:
    offsets = torch.arange(KEY_BLOCK)
    written = offsets < torch.tensor([block.written for block in blocks])[:, None]
    places, tags = torch.tensor([[block.pages, block.tags] for block in blocks]).unbind(1)
    slots = (places[:, :, None] * PAGE + torch.arange(PAGE)).flatten(1)
    positions = torch.tensor([block.start for block in blocks])[:, None] + offsets
    wanted = torch.stack([tags.repeat_interleave(PAGE, dim=1), positions], dim=-1)
    return Reading(
        slots[written],
        wanted[written].int(),
        written.nonzero()[:, 0],
        tuple(frozenset(block.chunks) for block in blocks),
    )


def _tiles(spans: list[_Span], blocks: list[_Block], tile_rows: int, n_tokens: int) -> Tiles:
    rows, positions, flat = [], [], [0] * n_tokens
    for i, span in enumerate(spans):
        count, pad = span.stop - span.first, tile_rows - (span.stop - span.first)
        rows += [*range(span.row, span.row + count), *[0] * pad]
        positions += [*range(span.first, span.stop), *[span.stop - 1] * pad]
        flat[span.row : span.row + count] = range(i * tile_rows, i * tile_rows + count)
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
    found: dict[tuple[int, tuple[int, ...], tuple[int, ...]], _Block] = {}
    for i, span in enumerate(spans):
        for start in range(0, span.stop, KEY_BLOCK):
            written = min(span.sequence.length - start, KEY_BLOCK)
            part = slice(start // PAGE, (start + KEY_BLOCK) // PAGE)
            pages, tags = span.sequence.pages[part], span.sequence.tags[part]
            key = (written, tuple(pages), tuple(tags))
            if key not in found:
                missing = KEY_BLOCK // PAGE - len(pages)
                filled = [*pages, *pages[:1] * missing], [*tags, *tags[:1] * missing]
                found[key] = _Block(start, *filled, written, [], set())
            found[key].readers.append(i)
            found[key].chunks.add(span.chunk)
    return list(found.values())
