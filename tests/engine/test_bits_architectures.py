"""Windows, soft caps, fused projections and rope by layer type change nothing of what test_bits asks of llama."""

import pytest

from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest, RequestFailure

ARCHITECTURES = ["mistral", "gemma2", "gemma3", "phi3", "gpt_oss", "qwen2_moe"]
PLANS = ["w=bf16,kv=bf16", "w=bf16,kv=bf16 > w=int4:g32:sym,kv=fp8"]
CASES = [(name, plan) for name in ARCHITECTURES for plan in PLANS]
CASES += [
    ("deepseek_v3", "w=bf16,kv=bf16 > w=int4:g32:sym,kv=fp8:latent128"),
    ("glm_moe_dsa", "w=fp8,kv=fp8:latent128 > w=bf16,kv=bf16"),
]
LENGTHS = [1, 14, 30, 46, 62, 130]  # tokens; the first five fill 11 pages, and 15 when they have written 12
WRITTEN = 12


@pytest.fixture(scope="module")
def asked(ids):
    """Prompts of their own, and some that begin alike."""
    prompts = [ids(length, seed=length) for length in LENGTHS]
    prompts += [prompts[-1][:cut] + ids(3, seed=cut) for cut in (16, 50)]
    return [
        GenerateRequest(prompt=prompt, max_tokens=WRITTEN, logprobs=1, ignore_eos=True, id=str(n))
        for n, prompt in enumerate(prompts)
    ]


def answers(engine: Engine, requests) -> dict[str, tuple]:
    """Tokens and their log-probabilities, by id."""
    found = {}
    for answer in engine.generate(requests):
        assert not isinstance(answer, RequestFailure)
        found[answer.id] = (answer.token_ids, answer.logprobs)
    assert len(found) == len(requests)
    return found


@pytest.fixture(scope="module", params=CASES, ids=str)
def alone(request, serve, asked):
    """An engine's arguments, and its answers when every request is asked alone and nothing is cached."""
    engine = serve(*request.param, kv_tokens=1024, max_batch=1)
    found = {}
    for one in asked:
        for stage in (engine.arm().prefill, engine.arm().decode):
            stage.cache.drop_all()
        found |= answers(engine, [one])
    assert len({tokens for tokens, _ in found.values()}) == len(asked)  # or equality would show nothing
    return request.param, found


def test_neighbours_and_cached_pages_change_no_bit(alone, serve, asked):
    engine = serve(*alone[0], kv_tokens=1024)
    assert answers(engine, asked) == alone[1]
    assert answers(engine, asked[::-1]) == alone[1]
    assert engine.arm().prefill.cache.hit_tokens > sum(LENGTHS) // 2


@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_chunks_change_no_bit(alone, serve, asked, chunk):
    some = asked if chunk > 1 else asked[1:4]
    engine = serve(*alone[0], kv_tokens=1024, chunk=chunk)
    assert answers(engine, some) == {one.id: alone[1][one.id] for one in some}


def test_preemption_changes_no_bit(alone, serve, asked):
    engine = serve(*alone[0], kv_tokens=12 * 16)
    assert answers(engine, asked) == alone[1]
    assert engine.arm().decode.work.tokens > len(asked) * (WRITTEN - 1)  # some went through decode again
