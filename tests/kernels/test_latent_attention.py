"""Both forms against the formula in float64, over ragged batches whose unwritten slots hold NaN."""

import pytest
import torch

from evalsvc.engine.batch import Chunk, pack
from evalsvc.engine.kv.latent_pool import LatentPool
from evalsvc.engine.kv.pool import Scales, Sequence
from evalsvc.engine.precision import KVFormat
from evalsvc.engine.sizes import LatentShape
from evalsvc.kernels.latent_attention import absorb, expanded_attention, latent_attention, release
from evalsvc.kernels.sparse_index import select_keys

FORMATS = {
    "fp32": KVFormat("fp32"),
    "bf16": KVFormat("bf16"),
    "tiles": KVFormat("fp8", "latent128"),
    "calibrated": KVFormat("fp8", "tensor:calibrated"),
    "uncalibrated": KVFormat("fp8", "tensor:uncalibrated"),
}
# (tokens already there, tokens now): borders of pages (16) and of blocks of keys (128) among them.
RAGGED = [(0, 1), (0, 16), (5, 12), (127, 1), (126, 5), (128, 16), (200, 70), (31, 1)]
SHAPE = LatentShape(1, 256, 16, 32, (0,))
HEADS, NOPE, WIDTH, INDEX_HEADS = 3, 24, 20, 4
SCALING = 40**-0.5


class Filled:
    """A poisoned pool with ragged sequences, pages scattered, and the packed batch of their new tokens."""

    def __init__(self, fmt: KVFormat, tile_rows: int):
        self.g = torch.Generator().manual_seed(tile_rows)
        scale = torch.tensor([0.013])
        scales = Scales(scale, scale) if fmt.calibrated else None
        self.pool = LatentPool(fmt, SHAPE, 1600, scales, poison=True)
        sequences = [Sequence() for _ in RAGGED]
        for start in range(0, 200, 16):  # page by page in turns, so that no sequence is contiguous
            for sequence, (before, _) in zip(sequences, RAGGED, strict=True):
                if start < before:
                    self.pool.extend(sequence, min(16, before - start))
        for sequence in sequences:
            self.write(sequence.slots(0, sequence.length))
        self.chunks = [
            Chunk(s, [0] * (now if tile_rows > 1 else 1)) for s, (_, now) in zip(sequences, RAGGED, strict=True)
        ]
        self.batch = pack(self.pool, self.chunks, tile_rows)
        self.write(self.batch.slots.tolist())
        tokens = len(self.batch.token_ids)
        self.q_nope, self.q_rope = self.random(tokens, HEADS, NOPE), self.random(tokens, HEADS, SHAPE.rope)
        self.q_index, self.weights = self.random(tokens, INDEX_HEADS, SHAPE.index), self.random(tokens, INDEX_HEADS)
        self.up = self.random(HEADS, NOPE + WIDTH, SHAPE.rank) * SHAPE.rank**-0.5

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.g)

    def write(self, slots: list[int]) -> None:
        parts = (self.random(len(slots), numbers) for numbers in (SHAPE.rank, SHAPE.rope, SHAPE.index))
        self.pool.write(0, torch.tensor(slots, dtype=torch.long), *parts)

    def attended(self, form: str, selection=None) -> torch.Tensor:
        pool, tiles = self.pool, self.batch.tiles
        pages = pool.latent[0], pool.rope[0], pool.read_scale(0)
        if form == "expanded":
            return expanded_attention(self.q_nope, self.q_rope, *pages, self.up, tiles, SCALING, selection)
        sums = latent_attention(absorb(self.q_nope, self.up), self.q_rope, *pages, tiles, SCALING, selection)
        return release(sums, self.up, NOPE)

    def selected(self, topk: int):
        return select_keys(self.q_index, self.weights, *self.pool.index_of(0), self.batch.tiles, 0.2, topk)

    def sequences(self):
        """By sequence the rows of its new tokens, what is stored of it, and what its queries may see."""
        row = 0
        for chunk in self.chunks:
            rows, length = slice(row, row + len(chunk.tokens)), chunk.sequence.length
            seen = torch.arange(length)[None] <= torch.arange(length - len(chunk.tokens), length)[:, None]
            yield rows, [part.double() for part in self.pool.read(0, chunk.sequence.slots(0, length))], seen
            row = rows.stop

    def formula(self, rows: slice, latent: torch.Tensor, rope: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        keys = torch.einsum("sr,hnr->hsn", latent, self.up[:, :NOPE].double())
        values = torch.einsum("sr,hvr->hsv", latent, self.up[:, NOPE:].double())
        scores = torch.einsum("thn,hsn->hts", self.q_nope[rows].double(), keys)
        scores = (scores + torch.einsum("thd,sd->hts", self.q_rope[rows].double(), rope)) * SCALING
        return torch.einsum("hts,hsv->thv", scores.masked_fill(~seen, -torch.inf).softmax(-1), values)

    def best(self, rows: slice, index: torch.Tensor, seen: torch.Tensor, topk: int) -> torch.Tensor:
        scores = torch.einsum("thd,sd->ths", self.q_index[rows].double(), index).mul(0.2).relu()
        scores = torch.einsum("ths,th->ts", scores, self.weights[rows].double()).masked_fill(~seen, -torch.inf)
        order = scores.sort(dim=-1, descending=True, stable=True).indices  # relu leaves zeros, equal ones among them
        return torch.zeros_like(seen).scatter_(-1, order[:, :topk], True) & seen


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
@pytest.mark.parametrize("tile_rows", [1, 16])
@pytest.mark.parametrize("name", FORMATS)
def test_both_forms_equal_the_formula(name, tile_rows, form):
    """fp32 sums of at most 272 terms err by some 1e-6 of outputs near 1."""
    filled = Filled(FORMATS[name], tile_rows)
    out = filled.attended(form)
    for rows, (latent, rope, _), seen in filled.sequences():
        assert (out[rows] - filled.formula(rows, latent, rope, seen)).abs().max() <= 2e-5


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
@pytest.mark.parametrize("tile_rows", [1, 16])
@pytest.mark.parametrize("name", ["bf16", "tiles"])
def test_of_sparse_attention_each_query_reads_its_highest_keys_alone(name, tile_rows, form):
    """Short sequences keep all their keys beside long ones that do not."""
    filled = Filled(FORMATS[name], tile_rows)
    for topk in (1, 17, 40):
        out = filled.attended(form, filled.selected(topk))
        for rows, (latent, rope, index), seen in filled.sequences():
            best = filled.best(rows, index, seen, topk)
            assert (best.sum(-1) == seen.sum(-1).clamp(max=topk)).all()
            assert (out[rows] - filled.formula(rows, latent, rope, best)).abs().max() <= 2e-5
    longest = max(chunk.sequence.length for chunk in filled.chunks)
    assert filled.selected(longest) is None and filled.selected(longest - 1) is not None


def test_of_equal_scores_the_earlier_keys_are_read():
    filled = Filled(FORMATS["bf16"], 16)
    filled.weights.zero_()
    out = filled.attended("expanded", filled.selected(9))
    for rows, (latent, rope, _), seen in filled.sequences():
        first = seen & (torch.arange(seen.shape[1]) < 9)
        assert (out[rows] - filled.formula(rows, latent, rope, first)).abs().max() <= 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_token_alone_has_the_bits_that_it_has_in_company(dtype):
    g = torch.Generator().manual_seed(0)
    q, up = torch.randn(9, HEADS, NOPE, generator=g).to(dtype), torch.randn(HEADS, 44, 256, generator=g).to(dtype)
    sums = torch.randn(9, HEADS, 256, generator=g).to(dtype)
    for count in range(1, 9):
        assert torch.equal(absorb(q[:count], up), absorb(q, up)[:count])
        assert torch.equal(release(sums[:count], up, NOPE), release(sums, up, NOPE)[:count])


def test_the_tiles_of_a_latent_have_scales_of_their_own():
    pool = LatentPool(FORMATS["tiles"], SHAPE, 16, poison=True)
    latent = torch.cat([torch.full((1, 128), 3.0), torch.full((1, 128), 3e-3)], 1)
    pool.write(0, torch.tensor([5]), latent, torch.full((1, 16), 700.0), torch.full((1, 32), 9.0))
    assert pool.scale is not None and torch.allclose(pool.scale[0, 5], torch.tensor([3 / 448, 3e-3 / 448]))
    got = pool.read(0, [5])
    assert (
        torch.allclose(got[0], latent, rtol=1e-6) and (got[1] == 700).all() and torch.allclose(got[2], got[2] * 0 + 9)
    )
    assert pool.rope.dtype == torch.bfloat16  # 700 is beyond e4m3
