"""Against the textbook formula in float64, over ragged batches whose unwritten slots hold NaN."""

import math

import pytest
import torch

from evalsvc.engine.batch import Chunk, pack
from evalsvc.engine.kv.pool import KVPool, Scales, Sequence
from evalsvc.engine.precision import KVFormat
from evalsvc.kernels.paged_attention import paged_attention
from evalsvc.kernels.tiles import KEY_BLOCK, MIN_ROWS

FORMATS = {
    "fp32": KVFormat("fp32"),
    "bf16": KVFormat("bf16"),
    "token-head": KVFormat("fp8", "token-head"),
    "calibrated": KVFormat("fp8", "tensor:calibrated"),
    "per head": KVFormat("fp8", "head:given"),
    "uncalibrated": KVFormat("fp8", "tensor:uncalibrated"),
    "int8 token-head": KVFormat("int8", "token-head"),
    "int8 calibrated": KVFormat("int8", "tensor:calibrated"),
    "int8 per head": KVFormat("int8", "head:given"),
}
# (tokens already there, tokens now): borders of pages (16) and of blocks of keys (128) among them.
RAGGED = [(0, 1), (0, 16), (5, 12), (127, 1), (126, 5), (128, 16), (200, 70), (31, 1)]
KV_HEADS = 2


def naive(q, k, v, scaling, window=None, softcap=None):
    """One sequence in float64. q: (rows, heads, dim), the last rows of k, v: (keys, kv_heads, dim)."""
    rows, heads, _ = q.shape
    k, v = (t.double().repeat_interleave(heads // t.shape[1], dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    keys, queries = torch.arange(len(k))[None], (len(k) - rows + torch.arange(rows))[:, None]
    allowed = keys <= queries
    if window is not None:
        allowed &= keys > queries - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), v)


def filled(fmt: KVFormat, dim: int, seed: int = 0):
    """A poisoned pool with ragged sequences, pages scattered, and the packed batch of their new tokens."""
    g = torch.Generator().manual_seed(seed)
    scales = None
    if fmt.calibrated or fmt.given:
        k, v = torch.tensor([[0.07, 0.011]]), torch.tensor([[0.03, 0.05]])
        scales = Scales(k, v) if fmt.per == "head" else Scales(k[:, 0], v[:, 0])
    pool = KVPool(fmt, 1, KV_HEADS, dim, 1600, scales, poison=True)
    sequences = [Sequence() for _ in RAGGED]
    for start in range(0, 200, 16):  # page by page in turns, so that no sequence is contiguous
        for sequence, (before, _) in zip(sequences, RAGGED, strict=True):
            if start < before:
                pool.extend(sequence, min(16, before - start))
    for sequence in sequences:
        if sequence.length:
            shape = (sequence.length, KV_HEADS, dim)
            pool.write(
                0,
                torch.tensor(sequence.slots(0, sequence.length)),
                torch.randn(shape, generator=g) * 2,
                torch.randn(shape, generator=g) + 0.5,
            )
    return g, pool, sequences


@pytest.mark.parametrize("tile_rows", [1, 16])
@pytest.mark.parametrize(("group", "dim"), [(1, 16), (3, 64), (4, 24)])
@pytest.mark.parametrize("name", FORMATS)
def test_every_ragged_batch_equals_the_formula(name, group, dim, tile_rows):
    """fp32 sums of at most 270 terms err by some 1e-6 of outputs near 1."""
    g, pool, sequences = filled(FORMATS[name], dim)
    chunks = [Chunk(s, [0] * now) for s, (_, now) in zip(sequences, RAGGED, strict=True)]
    if tile_rows == 1:
        chunks = [Chunk(s, [0]) for s in sequences]
    batch = pack(pool, chunks, tile_rows)
    tokens = len(batch.token_ids)
    q = torch.randn(tokens, KV_HEADS * group, dim, generator=g)
    new = torch.randn(2, tokens, KV_HEADS, dim, generator=g)
    pool.write(0, batch.slots, new[0], new[1])
    out = paged_attention(
        q, pool.k[0], pool.v[0], pool.read_scale("k", 0), pool.read_scale("v", 0), batch.tiles, dim**-0.5
    )
    row = 0
    for chunk in chunks:
        mine = slice(row, row + len(chunk.tokens))
        k, v = pool.read(0, chunk.sequence.slots(0, chunk.sequence.length))
        expected = naive(q[mine], k, v, dim**-0.5)
        assert (out[mine] - expected).abs().max() <= 1e-5, chunk.sequence.length
        row = mine.stop
    assert math.isfinite(float(out.sum()))


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("tile_rows", [1, 16])
def test_windows_and_soft_caps_equal_the_formula(tile_rows, softcap):
    """Windows at the borders of pages and blocks, all of them over the same tiles, as in a model that mixes them.

    The widest comes first: blocks that it does not reach are poisoned before it reads, and no narrower one needs them.
    """
    g, pool, sequences = filled(FORMATS["bf16"], 24)
    chunks = [Chunk(s, [0] * (now if tile_rows > 1 else 1)) for s, (_, now) in zip(sequences, RAGGED, strict=True)]
    batch = pack(pool, chunks, tile_rows)
    tokens = len(batch.token_ids)
    q = torch.randn(tokens, KV_HEADS * 2, 24, generator=g)
    pool.write(0, batch.slots, *torch.randn(2, tokens, KV_HEADS, 24, generator=g))
    stored = [pool.read(0, s.slots(0, s.length)) for s in sequences]
    for window in (None, 1000, 200, 129, 128, 127, 17, 16, 15, 2, 1):
        for chunk, (before, _) in zip(chunks, RAGGED, strict=True):
            oldest = 0 if window is None else max(before - window + 1, 0)
            unread = chunk.sequence.slots(0, oldest // KEY_BLOCK * KEY_BLOCK)
            pool.k[0, unread] = pool.v[0, unread] = torch.nan
        out = paged_attention(q, pool.k[0], pool.v[0], None, None, batch.tiles, 0.2, window, softcap)
        row = 0
        for chunk, (k, v) in zip(chunks, stored, strict=True):
            mine = slice(row, row + len(chunk.tokens))
            expected = naive(q[mine], k, v, 0.2, window, softcap)
            assert (out[mine] - expected).abs().max() <= 1e-5, (window, chunk.sequence.length)
            row = mine.stop
    assert pool.k[0].isnan().sum() > pool.k[0, 0].numel() * 128  # narrow windows left whole blocks unread


@pytest.mark.parametrize("window", [None, 1, 17, 128, 130])
def test_where_tiles_begin_and_who_is_beside_them_leaves_every_bit(window):
    """The same queries in tiles that begin elsewhere: leading blocks read by one tile are not read by another."""
    g, pool, sequences = filled(FORMATS["bf16"], 64)
    sequence = sequences[6]
    length, new = sequence.length, 90
    q, k, v = (torch.randn(new, heads, 64, generator=g).bfloat16() for heads in (6, KV_HEADS, KV_HEADS))
    whole = None
    for sizes in ([new], [1, 16, 16, 57], [7] * 12 + [6], [33, 33, 24]):
        pool.truncate(sequence, length)
        parts = []
        for size in sizes:
            done = sum(len(part) for part in parts)
            neighbour = Sequence()
            batch = pack(pool, [Chunk(neighbour, [0] * 3), Chunk(sequence, [0] * size)], 16)
            mine = slice(done, done + size)
            pool.write(0, batch.slots, *(torch.cat([t[:3], t[mine]]) for t in (k, v)))
            query = torch.cat([q[:3], q[mine]])
            parts.append(paged_attention(query, pool.k[0], pool.v[0], None, None, batch.tiles, 0.125, window, 20.0)[3:])
            pool.free(neighbour)
        whole = torch.cat(parts) if whole is None else whole
        assert torch.equal(torch.cat(parts), whole), sizes


def test_scores_far_below_zero_beside_a_longer_sequence():
    """About -500 each: what a tile lacks of another's blocks must not pass for scores of zero."""
    g = torch.Generator().manual_seed(5)
    pool = KVPool(FORMATS["fp32"], 1, KV_HEADS, 64, 512, poison=True)
    sequences = [Sequence(), Sequence()]
    batch = pack(pool, [Chunk(s, [0] * n) for s, n in zip(sequences, (300, 10), strict=True)], 16)
    q = 8 + torch.randn(310, KV_HEADS, 64, generator=g)
    k, v = torch.randn(2, 310, KV_HEADS, 64, generator=g)
    k -= 8
    pool.write(0, batch.slots, k, v)
    out = paged_attention(q, pool.k[0], pool.v[0], None, None, batch.tiles, 0.125)
    for mine in (slice(0, 300), slice(300, 310)):  # scores' fp32 steps at 500 are 3e-5
        assert (out[mine] - naive(q[mine], k[mine], v[mine], 0.125)).abs().max() <= 1e-3


@pytest.mark.parametrize("name", ["fp32", "bf16", "token-head", "int8 per head"])
@pytest.mark.parametrize("tile_rows", [1, 16])
def test_a_shared_prefix_is_read_once_and_leaves_every_bit(name, tile_rows):
    """Three sequences over one prefix of two whole blocks and a part, against each alone over pages of its own."""
    g = torch.Generator().manual_seed(3)
    dim, heads, prefix, new = 32, 6, 300, 1 if tile_rows == 1 else 40
    q, k, v = (torch.randn(3, prefix + new, h, dim, generator=g).bfloat16() for h in (heads, KV_HEADS, KV_HEADS))
    k[:, :prefix], v[:, :prefix] = k[:1, :prefix].clone(), v[:1, :prefix].clone()
    given = Scales(torch.tensor([[0.03, 0.02]]), torch.tensor([[0.03, 0.02]])) if FORMATS[name].given else None
    pool = KVPool(FORMATS[name], 1, KV_HEADS, dim, 4096, given, poison=True)

    def attend(rows: list[int], sequences: list[Sequence]) -> torch.Tensor:
        batch = pack(pool, [Chunk(s, [0] * new) for s in sequences], tile_rows)
        pool.write(0, batch.slots, *(t[rows, prefix:].flatten(0, 1) for t in (k, v)))
        blocks = sum(len(read.slots) for read in batch.tiles.reads(None, KV_HEADS, 3).parts)
        assert blocks == 2 + len(rows)
        scales = pool.read_scale("k", 0), pool.read_scale("v", 0)
        return paged_attention(q[rows, prefix:].flatten(0, 1), pool.k[0], pool.v[0], *scales, batch.tiles, 0.2)

    def start() -> Sequence:
        sequence = Sequence()
        pool.write(0, torch.tensor(pool.extend(sequence, prefix)), k[0, :prefix], v[0, :prefix])
        return sequence

    held = start()
    together = attend([0, 1, 2], [pool.fork(held) for _ in range(3)])
    for i in range(3):
        assert torch.equal(attend([i], [start()]), together[i * new : (i + 1) * new])


@pytest.mark.parametrize("dim", [16, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_a_product_has_the_same_bits_beside_any_number_of_rows(dtype, dim):
    """What reading a shared block once rests on, for scores and for weighted sums."""
    g = torch.Generator().manual_seed(dim)
    most = 1100
    query, key = torch.randn(2, most, dim, generator=g).to(dtype), torch.randn(2, KEY_BLOCK, dim, generator=g).to(dtype)
    weights = torch.rand(2, most, KEY_BLOCK, generator=g).to(dtype)
    for left, right in ((query, key.transpose(1, 2)), (weights, key)):
        whole = torch.bmm(left, right)
        for rows in (MIN_ROWS, MIN_ROWS + 1, 8, 15, 16, 48, 96, 336, 1023):
            for first in (0, 1, most - rows):
                part = left[:, first : first + rows].contiguous()
                assert torch.equal(torch.bmm(part, right), whole[:, first : first + rows]), rows
                assert torch.equal(torch.bmm(part[1:], right[1:])[0], whole[1, first : first + rows]), rows


@pytest.mark.parametrize("name", ["fp32", "bf16", "calibrated"])
def test_bf16_queries_round_weights_and_sums_of_blocks_and_nothing_else(name):
    """Weights and blocks' sums each err by half a bf16 step, 2^-8, of what they weigh; so does the result itself.

    fp32 pages round the result alone.
    """
    g, pool, sequences = filled(FORMATS[name], 64)
    sequence = sequences[6]
    batch = pack(pool, [Chunk(sequence, [0] * 70)], 16)
    pool.write(0, batch.slots, *torch.randn(2, 70, KV_HEADS, 64, generator=g))
    q = (30 * torch.randn(70, KV_HEADS * 3, 64, generator=g)).bfloat16()  # scores of some hundreds
    scales = pool.read_scale("k", 0), pool.read_scale("v", 0)
    out = paged_attention(q, pool.k[0], pool.v[0], *scales, batch.tiles, 0.125)
    k, v = pool.read(0, sequence.slots(0, sequence.length))
    steps = 1 if name == "fp32" else 3
    weighed = naive(q, k, v.abs(), 0.125)
    assert ((out - naive(q, k, v, 0.125)).abs() <= steps * 2**-8 * weighed + 1e-5).all()


def test_a_scale_that_only_the_reader_doubles_changes_the_output():
    """Fault 8: on both sides it cancels, on one it shows."""

    def output(k_scale: float, v_scale: float, read_factor: float) -> torch.Tensor:
        fmt = KVFormat("fp8", "tensor:calibrated")
        pool = KVPool(fmt, 1, 2, 16, 64, Scales(torch.tensor([k_scale]), torch.tensor([v_scale])), read_factor, True)
        sequence, g = Sequence(), torch.Generator().manual_seed(1)
        batch = pack(pool, [Chunk(sequence, [0] * 20)], 16)
        q, k, v = (torch.randn(20, heads, 16, generator=g) for heads in (4, 2, 2))
        pool.write(0, batch.slots, k, v)
        return paged_attention(
            q, pool.k[0], pool.v[0], pool.read_scale("k", 0), pool.read_scale("v", 0), batch.tiles, 0.25
        )

    plain = output(0.01, 0.01, 1.0)
    assert (
        output(0.02, 0.02, 1.0) - plain
    ).abs().max() < 0.02 * plain.abs().max()  # twice the step of the smallest codes
    assert (output(0.01, 0.01, 2.0) - plain).abs().max() > 0.1 * plain.abs().max()


def test_other_tiles_in_the_batch_leave_every_bit():
    g, pool, sequences = filled(FORMATS["bf16"], 64)
    chunks = [Chunk(s, [0]) for s in sequences]
    batch = pack(pool, chunks, 1)
    q = torch.randn(len(chunks), KV_HEADS * 3, 64, generator=g).bfloat16()
    pool.write(0, batch.slots, *torch.randn(2, len(chunks), KV_HEADS, 64, generator=g))
    whole = paged_attention(q, pool.k[0], pool.v[0], None, None, batch.tiles, 0.125)
    for i, sequence in enumerate(sequences):
        pool.truncate(sequence, sequence.length - 1)
        alone = pack(pool, [Chunk(sequence, [0])], 1)
        assert alone.slots.tolist() == [batch.slots[i]]
        assert torch.equal(
            paged_attention(q[i : i + 1], pool.k[0], pool.v[0], None, None, alone.tiles, 0.125)[0], whole[i]
        )
