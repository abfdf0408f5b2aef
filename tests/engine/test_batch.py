"""What a packed batch says about its tokens, and which keys its tiles name."""

import pytest
import torch

from evalsvc.engine.batch import Chunk, never_one_row, pack
from evalsvc.engine.kv.pool import KVPool, PoolFull, Sequence
from evalsvc.engine.precision import parse_plan
from evalsvc.kernels.tiles import KEY_BLOCK


@pytest.fixture
def pool():
    return KVPool(parse_plan("kv=bf16").prefill.kv, 1, 1, 8, 2048)


def held(pool: KVPool, tokens: int) -> Sequence:
    sequence = Sequence()
    pool.extend(sequence, tokens)
    return sequence


def named(tiles) -> dict[int, list[int]]:
    """By tile, the slots that it names, block after block in the order of their keys."""
    slots: dict[int, list[int]] = {tile: [] for tile in range(len(tiles.rows))}
    for block in sorted(range(len(tiles.starts)), key=tiles.starts.__getitem__):
        for tile in tiles.readers[block]:
            assert tiles.starts[block] == len(slots[tile])
            slots[tile] += tiles.slots[block].tolist()
    return slots


@pytest.mark.parametrize("tile_rows", [1, 16])
def test_tiles_hold_every_token_once_and_name_the_slots_up_to_it(pool, tile_rows):
    chunks = [(held(pool, before), now) for before, now in ((0, 5), (127, 1), (130, 40), (300, 17), (0, 1))]
    batch = pack(pool, [Chunk(s, list(range(now)), 2 if now > 1 else 0) for s, now in chunks], tile_rows)
    tiles, slots = batch.tiles, named(batch.tiles)
    assert batch.token_ids.tolist() == [t for _, now in chunks for t in range(now)]
    assert batch.positions.tolist() == [p for s, now in chunks for p in range(s.length - now, s.length)]
    assert batch.logit_rows.tolist() == [3, 4, 44, 45, 61, 62]
    assert tiles.rows.view(-1)[tiles.flat].tolist() == list(range(len(batch.token_ids)))
    assert tiles.positions.view(-1)[tiles.flat].tolist() == batch.positions.tolist()
    row = 0
    for sequence, now in chunks:
        own = sequence.slots(0, sequence.length)
        assert batch.slots[row : row + now].tolist() == own[-now:]
        for token in range(row, row + now):
            tile, position = int(tiles.flat[token]) // tile_rows, int(batch.positions[token])
            assert slots[tile][: position + 1] == own[: position + 1]
            assert set(slots[tile]) <= set(own)  # padding names nothing that was not written
        row += now


def test_a_block_that_sequences_share_is_named_once(pool):
    """300 tokens of a prefix: two whole blocks shared, the third has pages of its own in each sequence."""
    prefix = held(pool, 300)
    forks = [pool.fork(prefix) for _ in range(3)]
    tiles = pack(pool, [Chunk(s, [0] * 20) for s in forks], 16).tiles
    assert len(tiles.rows) == 6
    assert sorted(tiles.starts) == [0, 128, 256, 256, 256]
    shared = [tiles.readers[i] for i, start in enumerate(tiles.starts) if start < 256]
    assert shared == [(0, 1, 2, 3, 4, 5)] * 2
    assert sorted(tiles.readers[i] for i, start in enumerate(tiles.starts) if start == 256) == [(0, 1), (2, 3), (4, 5)]


def seen(tiles, window: int | None) -> int:
    """Pairs of a query and a key that it reads, by the bounds of all reads."""
    pairs = 0
    counts = torch.bincount(tiles.flat // 16, minlength=len(tiles.rows))  # the last tile is padded
    for read in tiles.reads(window, 1, 1).parts:
        shape = (len(read.slots), len(read.cells) // len(read.slots), 16, KEY_BLOCK)
        visible = torch.ones(shape) if read.bound is None else (read.bound > 0).view(shape)
        real = torch.arange(16) < counts[read.cells].view(*shape[:2], 1)
        pairs += int((visible * real[..., None]).sum())
    return pairs


def test_a_window_drops_blocks_that_none_of_a_tile_reads(pool):
    """40 queries at 300..339 in tiles from 300, 316 and 332."""
    tiles = pack(pool, [Chunk(held(pool, 300), [0] * 40)], 16).tiles
    counts = {None: 9, 300: 9, 190: 8, 189: 7, 174: 7, 173: 6, 100: 6, 46: 4, 45: 3, 1: 3}
    for window, blocks in counts.items():
        reads = tiles.reads(window, 1, 1)
        assert reads is tiles.reads(window, 1, 1)
        assert sum(len(read.cells) for read in reads.parts) == blocks, window


@pytest.mark.parametrize(("start", "count"), [(0, 1), (112, 16), (300, 40), (384, 660), (1920, 16)])
def test_a_query_sees_the_keys_of_its_window_and_no_others(pool, start, count):
    tiles = pack(pool, [Chunk(held(pool, start), [0] * count)], 16).tiles
    for window in (None, 1, 15, 128, 260, 261, 300, 1793, 2000):
        expected = sum(min(position + 1, window or position + 1) for position in range(start, start + count))
        assert seen(tiles, window) == expected, window


def test_one_token_and_one_row_are_put_in_twice(pool):
    alone = never_one_row(pack(pool, [Chunk(held(pool, 9), [7])], 1))
    assert alone.token_ids.tolist() == [7, 7]
    assert alone.slots.tolist()[0] == alone.slots.tolist()[1]
    assert alone.tiles.flat.tolist() == [0, 0]
    assert alone.logit_rows.tolist() == [0, 0]
    several = pack(pool, [Chunk(held(pool, 9), [7, 8], 1)], 1)
    assert never_one_row(several).token_ids.tolist() == [7, 8]
    assert never_one_row(several).logit_rows.tolist() == [1, 1]


def test_a_full_pool_leaves_every_sequence_as_it_was(pool):
    first, second = held(pool, 1000), held(pool, 1000)
    with pytest.raises(PoolFull):
        pack(pool, [Chunk(first, [0] * 30), Chunk(second, [0] * 30)], 16)
    assert (first.length, second.length, len(first.pages), len(second.pages)) == (1000, 1000, 63, 63)
    pool.check()
