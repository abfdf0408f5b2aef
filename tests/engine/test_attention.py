"""Attention against float64 over what the pool says that it holds, and what a step remembers and refuses."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn
from transformers.masking_utils import sliding_window_causal_mask_function
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from evalsvc.engine.attention import Step, attend, stepping
from evalsvc.engine.batch import Chunk, pack
from evalsvc.engine.kv.pool import KVPool, Scales, Sequence
from evalsvc.engine.precision import parse_plan
from evalsvc.errors import CapabilityError

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


@pytest.fixture
def one_step():
    """`one_step()`: a step of 40 tokens over a poisoned pool, and arguments of `attend` for one of its layers."""

    def make():
        torch.manual_seed(0)
        pool = KVPool(parse_plan("kv=fp32").prefill.kv, LAYERS, KV_HEADS, HEAD_DIM, 64, poison=True)
        batch = pack(pool, [Chunk(Sequence(), list(range(TOKENS)))], 16)
        heads = (KV_HEADS * GROUP, KV_HEADS, KV_HEADS)
        return Step(pool, batch.slots, batch.tiles), [torch.randn(1, h, TOKENS, HEAD_DIM) for h in heads]

    return make


def layer(index: int):
    return cast(nn.Module, SimpleNamespace(layer_idx=index))


@pytest.mark.parametrize("window", [1, 9, 40, 4096])
def test_windows_and_soft_caps_are_transformers_own(one_step, window):
    """As its eager attention computes them, under the mask that it makes for the window."""
    step, (query, key, value) = one_step()
    with stepping(step):
        windowed, _ = attend(layer(0), query, key, value, None, 0.5, sliding_window=window, softcap=3.0)
        full, _ = attend(layer(1), query, key, value, None, 0.5)
    assert step.windows == {0: window, 1: None}
    positions, zero = torch.arange(TOKENS), torch.tensor(0)
    allowed = sliding_window_causal_mask_function(window)(zero, zero, positions[:, None], positions[None])
    for out, mask, softcap in ((windowed, allowed, 3.0), (full, torch.ones(TOKENS, TOKENS).tril().bool(), None)):
        hidden = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        module = SimpleNamespace(training=False, num_key_value_groups=GROUP)
        expected, _ = eager_attention_forward(module, query, key, value, hidden, scaling=0.5, softcap=softcap)  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_a_step_knows_which_layers_have_run(one_step):
    step, (query, key, value) = one_step()
    with stepping(step):
        attend(layer(1), query, key, value, None, 1.0)
        assert step.windows == {1: None}
        with pytest.raises(CapabilityError, match="layer 1 attends twice"):
            attend(layer(1), query, key, value, None, 1.0)
        attend(layer(0), query, key, value, None, 1.0, sliding_window=3)
    assert step.windows == {1: None, 0: 3}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"attention_mask": torch.zeros(1, 1, TOKENS, TOKENS)}, "attention mask"),
        ({"sliding_window": 0}, "sliding window of 0"),
        ({"softcap": 0.0}, "soft cap of 0.0"),
    ],
)
def test_what_pages_do_not_serve_is_refused_by_name(one_step, asked, name):
    step, (query, key, value) = one_step()
    with stepping(step), pytest.raises(CapabilityError, match=f"layer 1 passes .*{name}"):
        attend(layer(1), query, key, value, **({"attention_mask": None, "scaling": 1.0} | asked))
    assert step.windows == {}
