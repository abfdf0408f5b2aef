"""Arms of one engine: what they share, and that they come and go."""

from dataclasses import replace

import pytest

from evalsvc.engine.requests import GenerateRequest
from evalsvc.errors import ConfigError


def test_every_arm_that_is_named_answers_once(group, alone, ids):
    request = GenerateRequest(prompt=ids(20, 1), max_tokens=5, arms=("kv", "same", "kv"), n=2, id="x")
    outcomes = list(group.answer([request]))
    assert sorted((o.id, o.arm, o.sample) for o in outcomes) == [
        ("x", arm, sample) for arm in ("kv", "same") for sample in (0, 1)
    ]


def test_arms_with_one_prefill_compute_a_prompt_once(group, ids, arms):
    prompt = ids(37, 21)
    shared, own = group.arm("kv").prefill, group.arm("other").prefill
    before = shared.work.tokens, own.work.tokens
    list(group.answer([GenerateRequest(prompt=prompt, max_tokens=3, arms=tuple(arms), n=3)]))
    assert (shared.work.tokens - before[0], own.work.tokens - before[1]) == (37, 37)
    assert shared is group.arm("same").prefill is not own


def test_arms_that_share_decode_alone_get_each_what_their_own_prefill_computed(serve, ids, answers):
    plans = {"one": "w=bf16", "two": "w=fp8 > w=bf16"}
    engine, judge = (serve("llama", plans=plans) for _ in range(2))
    assert engine.arm("one").decode is engine.arm("two").decode
    request = GenerateRequest(prompt=ids(40, 3), max_tokens=8, logprobs=0)
    expected = {}
    for name in plans:
        judge.arm(name).decode.cache.drop_all()
        expected |= answers(judge, [replace(request, arms=(name,))])
    assert len(set(expected.values())) == 2
    for arms in (("one", "two"), ("two",), ("one",), ("two", "one")):
        asked = replace(request, arms=arms)
        assert answers(engine, [asked]) == {name: said for name, said in expected.items() if name[1] in arms}


def test_an_arm_released_under_way_finishes_and_can_be_asked_again(serve, alone, ids, answers, arms, kept):
    engine = serve("llama", plans=arms)
    request = GenerateRequest(prompt=ids(20, 1), max_tokens=12, arms=("kv",), id="x")
    stream = engine.stream([request])
    next(stream)
    first = engine.arm("kv").decode
    engine.release("kv")
    *_, result = stream
    assert kept([result]) == alone([request]) == answers(engine, [request])
    assert engine.arm("kv").decode is not first
    with pytest.raises(ConfigError, match="unknown arm 'vk'"):
        engine.release("vk")


def test_stages_of_an_arm_that_was_asked_again_stay(serve, arms):
    engine = serve("llama", plans=arms)
    engine.arm("kv")
    engine.release("kv")
    kept = engine.arm("kv").prefill
    engine.release("other")
    engine.release("same")
    assert engine.arm("same").prefill is kept
    assert {stage["stage"] for stage in engine.stats()["stages"]} == {"prefill", "decode"}
