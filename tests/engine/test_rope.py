"""Rope past its original length, frozen where it hangs on the batch.

The reference is transformers' own forward, unchanged, over one sequence as long as what is served: there its choice of
frequencies is the one that freezing makes for all. What a shorter prompt must give are that forward's first rows.
"""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from evalsvc.engine.batch import Chunk
from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.pool import Sequence
from evalsvc.engine.model import read_config
from evalsvc.engine.precision import StagePlan, WeightFormat, parse_plan
from evalsvc.engine.rope import context_length, fill_buffers, hold_still
from evalsvc.engine.stage import DecodeStage, PrefillStage
from evalsvc.engine.weights import WeightSet
from evalsvc.errors import CapabilityError, ConfigError, EngineError

TOLERANCE = 5e-5  # as in test_parity
LENGTH = 96
ORIGINAL = 32
BASE = {"rope_theta": 10000.0}


def longrope(pairs: int) -> dict:
    """Short factors that grow over the pairs of rotated numbers, long ones that shrink."""
    return BASE | {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [4.0 - 0.1 * i for i in range(pairs)],
        "original_max_position_embeddings": ORIGINAL,
    }


ROPES = {
    "default": BASE | {"rope_type": "default"},
    "linear": BASE | {"rope_type": "linear", "factor": 4.0},
    "dynamic": BASE | {"rope_type": "dynamic", "factor": 4.0},
    "yarn": BASE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "llama3": BASE
    | {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope": longrope(16) | {"factor": 4.0},
}
CASES = {
    **{kind: ("llama", {"rope_parameters": rope, "max_position_embeddings": ORIGINAL}) for kind, rope in ROPES.items()},
    "phi3-longrope": (
        "phi3",
        {
            "rope_parameters": longrope(8) | {"rope_type": "su"},  # its old name
            "head_dim": 16,
            "partial_rotary_factor": 1.0,
            "original_max_position_embeddings": ORIGINAL,
            "max_position_embeddings": 4 * ORIGINAL,
        },
    ),
    "gemma3-mixed": (
        "gemma3",
        {
            "rope_parameters": {"sliding_attention": ROPES["dynamic"], "full_attention": ROPES["longrope"]},
            "max_position_embeddings": ORIGINAL,
        },
    ),
}
BY_THE_BATCH = ["dynamic", "longrope", "phi3-longrope", "gemma3-mixed"]


def stages(path, max_length):
    """Both stages over fp32 weights, their pools poisoned."""
    weights = WeightSet(ModelDirectory(path), WeightFormat("fp32"), {}, max_length)
    plan: StagePlan = parse_plan("w=fp32,kv=fp32").prefill
    return (PrefillStage(weights, plan, 1024, poison=True), DecodeStage(weights, plan, 1024, poison=True))


def difference(got, expected) -> float:
    assert len(got) == len(expected)
    return float((got - expected).abs().max())


@pytest.fixture(scope="module", params=CASES)
def case(request, tiny, reference, ids):
    """Prefill and decode that serve LENGTH tokens, a prompt of as many, and transformers' logits of it."""
    name, changes = CASES[request.param]
    prompt = ids(LENGTH, seed=5)
    with torch.no_grad():
        expected = reference(name, **changes)(torch.tensor([prompt])).logits[0]
    return *stages(tiny(name, **changes), LENGTH), prompt, expected


def test_past_the_original_length_a_prompt_equals_transformers(case):
    prefill, _, prompt, expected = case
    assert difference(prefill.forward([Chunk(Sequence(), prompt, LENGTH)]), expected) <= TOLERANCE


def test_chunks_across_the_original_length_equal_transformers(case):
    prefill, _, prompt, expected = case
    sequence, rows = Sequence(), []
    for start in range(0, LENGTH, 20):
        piece = prompt[start : start + 20]
        rows.append(prefill.forward([Chunk(sequence, piece, len(piece))]))
    assert difference(torch.cat(rows), expected) <= TOLERANCE


def test_a_long_prompt_leaves_its_short_neighbours_as_they_are(case):
    prefill, _, prompt, expected = case
    alone = prefill.forward([Chunk(Sequence(), prompt[:20], 20)])
    packed = prefill.forward([Chunk(Sequence(), prompt, LENGTH), Chunk(Sequence(), prompt[:20], 20)])
    assert difference(alone, expected[:20]) <= TOLERANCE
    assert difference(packed[LENGTH:], expected[:20]) <= TOLERANCE


def test_decoding_across_the_original_length_equals_transformers(case):
    _, decode, prompt, expected = case
    sequence = Sequence()
    rows = [decode.step([sequence], [token])[0] for token in prompt[: ORIGINAL + 20]]
    assert difference(torch.stack(rows), expected[: ORIGINAL + 20]) <= TOLERANCE


@pytest.mark.parametrize("kind", BY_THE_BATCH)
def test_up_to_the_original_length_nothing_is_stretched(kind, tiny, reference, ids):
    name, changes = CASES[kind]
    prompt = ids(ORIGINAL, seed=6)
    with torch.no_grad():
        expected = reference(name, **changes)(torch.tensor([prompt])).logits[0]
    original, stretched = (stages(tiny(name, **changes), length)[0] for length in (ORIGINAL, ORIGINAL + 1))
    assert difference(original.forward([Chunk(Sequence(), prompt, ORIGINAL)]), expected) <= TOLERANCE
    assert difference(stretched.forward([Chunk(Sequence(), prompt, ORIGINAL)]), expected) > 1e-3


@pytest.mark.parametrize("kind", ["dynamic", "phi3-longrope"])
def test_unless_told_all_that_the_model_is_made_for_is_served(kind, tiny):
    name, changes = CASES[kind]
    default, longest, original = (
        WeightSet(ModelDirectory(tiny(name, **changes)), WeightFormat("bf16"), {}, length).model.base_model.rotary_emb
        for length in (None, 4 * ORIGINAL, ORIGINAL)
    )
    assert torch.equal(default.inv_freq, longest.inv_freq)
    assert not torch.equal(default.inv_freq, original.inv_freq)


@pytest.mark.parametrize(
    ("options", "served"),
    [
        ({}, 4 * ORIGINAL),
        ({"kv_tokens": 48}, 48),
        ({"max_length": LENGTH}, LENGTH),
        ({"max_length": ORIGINAL}, ORIGINAL),
    ],
)
def test_an_engine_freezes_at_the_longest_sequence_that_it_serves(options, served, tiny, ids):
    name, changes = CASES["dynamic"]
    engine = Engine.load(tiny(name, **changes), "w=fp32,kv=fp32", **options)
    prompt = ids(ORIGINAL, seed=7)
    prefill, _ = stages(tiny(name, **changes), served)
    assert engine.max_length == served
    assert difference(engine.logits(prompt), prefill.forward([Chunk(Sequence(), prompt, ORIGINAL)])) == 0.0


@pytest.mark.parametrize(
    ("max_length", "refusal"),
    [
        (0, "max_length is 0; it must be a whole number from 1"),
        (4 * ORIGINAL + 1, "max_length 129 is not from 1 to 128"),
    ],
)
def test_no_engine_serves_more_than_the_model_is_made_for(max_length, refusal, tiny):
    name, changes = CASES["dynamic"]
    with pytest.raises(ConfigError, match=refusal):
        Engine.load(tiny(name, **changes), "w=fp32", max_length=max_length).arm()


@pytest.mark.parametrize(
    ("kind", "longest"),
    [("default", 32), ("linear", 128), ("dynamic", 128), ("yarn", 128), ("llama3", 32), ("longrope", 32)],
)
def test_how_long_a_sequence_the_model_is_made_for(kind, longest, tiny):
    name, changes = CASES[kind]
    assert context_length(read_config(ModelDirectory(tiny(name, **changes)))) == longest


def test_a_stretch_that_is_already_in_the_longest_position_is_not_counted_twice(tiny):
    stretched = {"rope_parameters": ROPES["yarn"], "max_position_embeddings": 128}
    assert context_length(read_config(ModelDirectory(tiny("llama", **stretched)))) == 128


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "phi3"])
def test_in_bf16_frequencies_and_the_scale_of_embeddings_are_those_of_transformers(name, tiny):
    model = WeightSet(ModelDirectory(tiny(name)), WeightFormat("bf16"), {}).model
    theirs = AutoModelForCausalLM.from_pretrained(tiny(name), dtype=torch.bfloat16)
    buffers = dict(model.named_buffers())
    expected = dict(theirs.named_buffers())
    assert buffers.keys() == expected.keys()
    for leaf, buffer in buffers.items():
        assert torch.equal(buffer, expected[leaf]), leaf
        if "inv_freq" in leaf:
            assert buffer.dtype == torch.float32


def test_a_buffer_that_nobody_can_make_is_named(tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny("llama"))
    model.model.norm.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    with pytest.raises(EngineError, match=r"model\.norm\.table"):
        fill_buffers(model)


class RotaryByTheBatch(nn.Module):
    """Chooses its frequencies from the batch without transformers' decorator."""

    rope_type = "default"

    def forward(self, x, positions):
        angles = positions[..., None] / (4.0 if positions.max() >= ORIGINAL else 1.0)
        return angles.cos(), angles.sin()


def test_frequencies_that_cannot_be_frozen_are_refused(tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny("llama"))
    model.model.rotary_emb = RotaryByTheBatch()
    fill_buffers(model, ORIGINAL)
    with pytest.raises(CapabilityError, match=r"model\.rotary_emb"):
        fill_buffers(model, ORIGINAL + 1)


def test_what_is_held_still_chooses_no_frequencies(tiny):
    name, changes = CASES["gemma3-mixed"]
    model = AutoModelForCausalLM.from_pretrained(tiny(name, **changes))
    hold_still(model)
    before = {leaf: buffer.clone() for leaf, buffer in model.named_buffers()}
    model(torch.zeros(1, LENGTH, dtype=torch.long))
    assert all(torch.equal(buffer, before[leaf]) for leaf, buffer in model.named_buffers())
