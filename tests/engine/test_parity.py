"""Every served architecture in fp32 against transformers' own full forward, over pools filled with NaN.

fp32 carries 24 bits; logits of standard deviation 1 to 3 over two layers differ by summation order alone by some 1e-6
to 1e-5, and of the random gemma either side is 3e-5 away from float64. A wrong position, page, window, scale or bias
shows as 1e-2 and more.
"""

import pytest
import torch

from evalsvc.engine.batch import Chunk
from evalsvc.engine.kv.handoff import handoff
from evalsvc.engine.kv.pool import Sequence

TOLERANCE = 1e-4
LENGTH = 50  # three pages and two tokens, six windows
LONG = 140  # more than a block of keys


@pytest.fixture(scope="module")
def pair(architecture, serve, reference, ids):
    """Engine, prompt and the reference's logits of all its tokens."""
    prompt = ids(LONG, seed=3)
    with torch.no_grad():
        expected = reference(architecture)(torch.tensor([prompt])).logits[0]
    assert expected.std() > 0.3  # a flat output would prove nothing
    return serve(architecture, "w=fp32,kv=fp32"), prompt, expected


def difference(got, expected) -> float:
    assert len(got) == len(expected)
    return float((got - expected).abs().max())


def test_a_prompt_in_one_piece_equals_transformers(pair):
    engine, prompt, expected = pair
    assert difference(engine.logits(prompt), expected) <= TOLERANCE


def test_a_prompt_decoded_token_by_token_equals_transformers(pair):
    engine, prompt, expected = pair
    assert difference(engine.logits(prompt[:LENGTH], through="decode"), expected[:LENGTH]) <= TOLERANCE


@pytest.mark.parametrize("size", [1, 7, 16, 33])
def test_a_prompt_in_chunks_equals_transformers(pair, size):
    engine, prompt, expected = pair
    stage, sequence = engine.arm().prefill, Sequence()
    length = LENGTH if size == 1 else LONG
    rows = []
    for start in range(0, length, size):
        piece = prompt[start : min(start + size, length)]
        rows.append(stage.forward([Chunk(sequence, piece, len(piece))]))
    stage.pool.free(sequence)
    assert difference(torch.cat(rows), expected[:length]) <= TOLERANCE


@pytest.mark.parametrize("shared", [1, 16, 40, LENGTH - 1])
def test_a_hit_on_cached_pages_equals_transformers(pair, shared):
    """Pages of an earlier prompt that begins alike are read, the last of them copied as far as it is equal."""
    engine, prompt, expected = pair
    stage = engine.arm().prefill
    stage.cache.drop_all()
    earlier = [*prompt[:shared], *(3 for _ in range(16))]
    (first,), _ = stage.prefill([earlier])
    stage.cache.put(earlier, first)
    stage.pool.free(first)
    sequence = stage.cache.take(prompt, LONG - 1, partly=True)
    assert sequence.length == shared or prompt[sequence.length - 1] == 3
    start = sequence.length
    rows = stage.forward([Chunk(sequence, prompt[start:], LONG - start)])
    stage.pool.free(sequence)
    assert difference(rows, expected[start:]) <= TOLERANCE


def test_prompts_packed_with_others_equal_transformers(pair, ids):
    engine, prompt, expected = pair
    packed = engine.batch_logits([ids(5, 1), prompt, ids(130, 2), prompt[:33], ids(16, 4)])
    assert difference(packed[1], expected) <= TOLERANCE
    assert difference(packed[3], expected[:33]) <= TOLERANCE


@pytest.mark.parametrize("cut", [1, 15, 16, 33, 128])
def test_prefill_then_handoff_then_decode_equals_transformers(pair, cut, ids):
    engine, prompt, expected = pair
    arm = engine.arm()
    (source, neighbour), _ = arm.prefill.prefill([prompt[:cut], ids(21, 9)])
    sequence, other = (handoff(arm.prefill.pool, s, arm.decode.pool) for s in (source, neighbour))
    assert len(sequence.pages) == -(-cut // 16)
    arm.prefill.pool.free(source)
    arm.prefill.pool.free(neighbour)
    arm.prefill.pool.poison()  # decode reads its own pool alone
    stop = min(cut + 20, LONG)
    rows = [arm.decode.step([other, sequence], [5, token])[1] for token in prompt[cut:stop]]
    for held in (sequence, other):
        arm.decode.pool.free(held)
    assert difference(torch.stack(rows), expected[cut:stop]) <= TOLERANCE


def test_nothing_stays_held(pair, nothing_held):
    nothing_held(pair[0])
