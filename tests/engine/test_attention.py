"""Each stored part is read with its own scale: attention against float64 over what the pool says that it holds."""

from types import SimpleNamespace

import pytest
import torch

from evalsvc.engine.attention import Step, attend, stepping
from evalsvc.engine.batch import Chunk, pack
from evalsvc.engine.kv.pool import KVPool, Scales, Sequence
from evalsvc.engine.precision import parse_plan

LAYERS, KV_HEADS, GROUP, HEAD_DIM, TOKENS = 2, 2, 3, 32, 40
KV_FORMATS = ["bf16", "fp8:token-head", "fp8:uncalibrated", "fp8:tensor:calibrated"]


@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("tile_rows", [1, 16])
def test_keys_and_values_are_read_each_with_its_own_scale(kv, tile_rows, factor):
    """Values fifty times as large as keys: a scale that went to the other part is far off."""
    torch.manual_seed(0)
    fmt = parse_plan(f"kv={kv}").prefill.kv
    given = Scales(torch.tensor([0.5, 0.01]), torch.tensor([4.0, 0.5])) if fmt.calibrated else None
    pool = KVPool(fmt, LAYERS, KV_HEADS, HEAD_DIM, 64, given, factor, poison=True)
    sequence = Sequence()
    batch = pack(pool, [Chunk(sequence, list(range(TOKENS)))], tile_rows)
    query = torch.randn(1, KV_HEADS * GROUP, TOKENS, HEAD_DIM)
    key, value = torch.randn(1, KV_HEADS, TOKENS, HEAD_DIM), 50 * torch.randn(1, KV_HEADS, TOKENS, HEAD_DIM)
    with stepping(Step(pool, batch.slots, batch.tiles)):
        out, _ = attend(SimpleNamespace(layer_idx=1), query, key, value, None, HEAD_DIM**-0.5)  # pyright: ignore[reportArgumentType]

    keys, values = (part.double().transpose(0, 1) for part in pool.read(1, sequence.slots(0, TOKENS)))
    torch.testing.assert_close(keys.float(), key[0], rtol=0.07, atol=0.01)
    torch.testing.assert_close(values.float(), value[0], rtol=0.07, atol=0.01)
    read_factor = factor if fmt.kind == "fp8" else 1.0
    grouped = query[0].double().view(KV_HEADS, GROUP, TOKENS, HEAD_DIM)
    scores = torch.einsum("hgqd,hkd->hgqk", grouped, keys) * read_factor * HEAD_DIM**-0.5
    scores = scores.masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf)
    expected = torch.einsum("hgqk,hkd->qhgd", scores.softmax(-1), values).reshape(TOKENS, -1, HEAD_DIM)
    torch.testing.assert_close(out[0].double(), expected, rtol=1e-4, atol=1e-3)
