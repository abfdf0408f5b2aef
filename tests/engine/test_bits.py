"""At one torch thread an answer is the same to the last bit, whoever shares the batch, the pages or the pool."""

import json
from dataclasses import replace

import pytest

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.engine import Engine
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest, GenerateResult, RequestFailure, ScoreRequest, ScoreResult

PLANS = {
    "bf16": "w=bf16,kv=bf16",
    "unequal": "w=bf16,kv=bf16 > w=int4:g32:sym:lm_head,kv=fp8",
    "back": "w=fp8:lm_head,kv=fp8:uncalibrated > w=bf16,kv=bf16",
    "blocks": "w=fp8:block128,kv=bf16 > w=int8,kv=fp8",
    "fours": "w=int8:w8a16,kv=fp8 > w=nvfp4,kv=bf16",
    "calibrated": "w=fp8:w8a16,kv=fp8:tensor:calibrated > w=int4:g32:asym,kv=fp8:tensor:calibrated",
}
PREFIX = "the end and the other end of a long prefix"  # 33 tokens: two pages and one token
# Prompt lengths in tokens: one, two pages, exactly one page, and one over each.
LENGTHS = [1, 15, 16, 17, 32, 33, 70]


@pytest.fixture(scope="module")
def engine_of(tiny, tmp_path_factory):
    calibration = tmp_path_factory.mktemp("calibration") / "prompts.jsonl"
    calibration.write_text("\n".join(json.dumps({"prompt": p}) for p in ("another text the model reads", "xyz 123")))

    def make(plan: str, **options) -> Engine:
        parsed = parse_plan(PLANS[plan])
        needs = parsed.prefill.kv.calibrated or parsed.decode.kv.calibrated
        spec = ArmSpec(parsed, calibration if needs else None)
        return Engine.load(tiny("llama"), plans={"arm": spec}, **({"kv_tokens": 4096, "poison": True} | options))

    return make


@pytest.fixture(scope="module")
def asked(ids):
    """Generation and scoring through both stages, with and without a shared prefix."""
    requests: list[GenerateRequest | ScoreRequest] = []
    for n, length in enumerate(LENGTHS):
        prompt = ids(length, seed=length)
        requests.append(GenerateRequest(prompt=prompt, max_tokens=3 + 5 * n, logprobs=2, id=f"g{n}"))
        drawn = GenerateRequest(prompt=prompt, max_tokens=9, temperature=1.5, top_p=0.9, seed=n, logprobs=0, id=f"t{n}")
        requests.append(drawn)
        continuations = (ids(1, 50 + n), ids(2 + n, 70 + n), ids(17, 90 + n))
        for through in ("prefill", "decode"):
            requests.append(
                ScoreRequest(context=prompt, continuations=continuations, through=through, id=f"{through}{n}")
            )
    for n in range(3):
        text = PREFIX + "abcdefghijklmnopqrst"[: 8 * n]
        requests.append(GenerateRequest(prompt=text, max_tokens=6, id=f"shared{n}"))
        for through in ("prefill", "decode"):
            score = ScoreRequest(
                context=text,
                continuations=(" the", "yz"),
                through=through,
                id=f"shared-{through}{n}",
            )
            requests.append(score)
    return requests


def everything(answer: GenerateResult | ScoreResult) -> tuple:
    """What of an answer must not hang on its company."""
    if isinstance(answer, GenerateResult):
        return answer.text, answer.token_ids, answer.finish_reason, answer.logprobs
    return answer.logprobs, answer.greedy, answer.tokens


def answers(engine: Engine, requests) -> dict[str, tuple]:
    """Everything of each answer, by id."""
    found = {}
    for answer in engine.answer(requests):
        assert not isinstance(answer, RequestFailure)
        found[answer.id] = everything(answer)
    assert len(found) == len(requests)
    return found


@pytest.fixture(scope="module", params=PLANS)
def alone(request, engine_of, asked):
    """Plan and its answers when every request is asked alone, of cold prefixes."""
    engine = engine_of(request.param, max_batch=1)
    found = {}
    for one in asked:
        for stage in (engine.arm().prefill, engine.arm().decode):
            stage.cache.drop_all()
        found |= answers(engine, [one])
    return request.param, found


@pytest.mark.parametrize("max_batch", [3, 32])
def test_neighbours_change_no_bit(alone, engine_of, asked, nothing_held, max_batch):
    engine = engine_of(alone[0], max_batch=max_batch)
    assert answers(engine, asked) == alone[1]
    nothing_held(engine)


def test_order_and_warm_prefixes_change_no_bit(alone, engine_of, asked):
    """Cold, then warm: A, B, A."""
    engine = engine_of(alone[0], max_batch=5)
    assert answers(engine, asked[::-1]) == alone[1]
    assert answers(engine, asked[::2]) == {r.id: alone[1][r.id] for r in asked[::2]}
    assert engine.proof()["prefix_cache"]["hit_tokens"] > 0


@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_chunks_change_no_bit(alone, engine_of, asked, chunk):
    some = asked if chunk > 7 else asked[-13:]  # small chunks are slow, and the last are the longest
    assert answers(engine_of(alone[0], chunk=chunk), some) == {r.id: alone[1][r.id] for r in some}


def test_what_lay_in_the_pool_changes_no_bit(alone, engine_of, asked):
    assert answers(engine_of(alone[0], poison=False), asked) == alone[1]


def test_preemption_changes_no_bit(alone, engine_of, asked, nothing_held):
    """Pages run out while answers grow: prompts come again from prefill, generated tokens again through decode."""
    engine = engine_of(alone[0], kv_tokens=13 * 16)
    assert answers(engine, asked) == alone[1]
    assert engine.stats()["preemptions"] > 0
    nothing_held(engine)


def test_other_arms_beside_it_change_no_bit(engine_of, asked, tiny):
    """A group of arms over one prefill stage: each answers as it does alone, and the prompts are computed once."""
    plans = {"same": "w=bf16,kv=bf16", "kv": "w=bf16,kv=bf16 > kv=fp8", "w": "w=bf16,kv=bf16 > w=int4:g32:asym,kv=fp8"}
    group = Engine.load(tiny("llama"), plans=plans, kv_tokens=4096, poison=True)
    found: dict[str, dict] = {name: {} for name in plans}
    for answer in group.answer([replace(one, arms=tuple(plans)) for one in asked]):
        assert not isinstance(answer, RequestFailure)
        found[answer.arm][answer.id] = everything(answer)
    work = group.arm("same").prefill.work
    for name, plan in plans.items():
        single = Engine.load(tiny("llama"), plan=plan, kv_tokens=4096, poison=True)
        assert answers(single, asked) == found[name]
        assert single.arm().prefill.work.tokens == work.tokens
