"""The engine as users write against it: loading, asking, what an answer carries, and what is refused how."""

import subprocess
import sys

import pytest
import torch

from evalsvc.engine import (
    Engine,
    GenerateRequest,
    GenerateResult,
    PrecisionPlan,
    RequestFailure,
    ScoreRequest,
    ScoreResult,
    parse_plan,
)
from evalsvc.errors import CapabilityError, ConfigError, EngineError

PLAN = "w=bf16,kv=bf16 > w=int4:g32:asym,kv=fp8"


@pytest.fixture(scope="module")
def engine(tiny):
    return Engine.load(str(tiny("llama")), plan=PLAN, device="auto", kv_tokens=65536)


def test_scores_as_a_user_asks_for_them(engine, ids):
    requests = [
        ScoreRequest(context="the end of", continuations=[" the", " a"], through="decode", id="text"),
        ScoreRequest(context=ids(20), continuations=[ids(3, 1), ids(1, 2)], id="ids"),
    ]
    results = {}
    for r in engine.score(requests):
        assert isinstance(r, ScoreResult)
        assert len(r.logprobs) == len(r.greedy) == len(r.continuation_tokens) == 2
        assert all(value < 0 for value in r.logprobs)
        results[r.id] = r
    assert results["text"].stage_tokens == {"prefill": 0, "decode": sum(results["text"].continuation_tokens)}
    assert results["text"].handed_over and not results["ids"].handed_over
    assert results["ids"].stage_tokens == {"prefill": 4, "decode": 0}
    assert results["ids"].prompt_tokens == 20


def test_answers_as_a_user_asks_for_them(engine, ids):
    requests = [
        GenerateRequest(prompt="the end of", max_tokens=64, stop=["\n\n"], temperature=0.0, seed=1, id="text"),
        GenerateRequest(prompt=ids(20), max_tokens=3, id="ids"),
    ]
    results = []
    for r in engine.generate(requests):
        assert isinstance(r, GenerateResult)
        assert r.finish_reason in ("stop", "length") and len(r.token_ids) <= 64
        assert r.text == engine.text.decode(engine.text.encode(requests[0].prompt)[-1], r.token_ids) or r.id == "ids"
        assert r.timings.queue_s >= 0 and r.timings.prefill_s > 0 and r.timings.decode_s >= 0
        assert (r.arm, r.sample) == ("default", 0)
        results.append(r.id)
    assert results == ["ids", "text"]  # as they finish


def test_one_call_takes_all_kinds_of_requests(engine):
    requests = [GenerateRequest(prompt="x", max_tokens=2), ScoreRequest(context="x", continuations=("y",))]
    assert {type(r) for r in engine.answer(requests)} == {GenerateResult, ScoreResult}


def test_a_plan_is_text_or_an_object_and_arms_are_a_mapping(tiny):
    plan = parse_plan(PLAN)
    assert isinstance(plan, PrecisionPlan)
    engine = Engine.load(tiny("llama"), plans={"text": PLAN, "object": plan})
    assert engine.arm("text").prefill is engine.arm("object").prefill
    assert engine.arm("text").decode is engine.arm("object").decode
    answers = {
        r.arm: r.text for r in engine.generate([GenerateRequest(prompt="x", max_tokens=4, arms=["object", "text"])])
    }
    assert answers["object"] == answers["text"]


def test_the_proof_says_what_was_held_and_run(engine):
    before = engine.proof()
    list(engine.generate([GenerateRequest(prompt="the end", max_tokens=3)]))
    after = engine.proof()
    assert after["mismatches"] == []
    assert after["prefill"]["tokens_computed"] > before["prefill"]["tokens_computed"]
    assert after["decode"]["tokens_computed"] == before["decode"]["tokens_computed"] + 2
    assert after["batches"]["count"] > before["batches"]["count"]


def test_the_capacity_is_format_bytes(engine):
    """Two layers, keys and values, two heads of 32; fp8 has a scale of four bytes for each token and head."""
    bf16, fp8 = 2 * 2 * 2 * 32 * 2, 2 * 2 * 2 * (32 + 4)
    assert engine.capacity(memory_bytes=10**6) == {"prefill": 10**6 // bf16, "decode": 10**6 // fp8}
    assert engine.capacity(memory_bytes=0) == {"prefill": 0, "decode": 0}


@pytest.mark.parametrize("through", ["prefill", "decode"])
def test_logits_are_those_of_transformers(serve, reference, ids, through):
    engine, prompt = serve("llama", "w=fp32,kv=fp32"), ids(37)
    rows = engine.logits(prompt, through=through)
    assert rows.shape == (37, 288) and rows.dtype == torch.float32
    with torch.no_grad():
        expected = reference("llama")(torch.tensor([prompt])).logits[0]
    assert (rows - expected).abs().max() <= 1e-4
    assert engine.arm().prefill.pool.free_pages == engine.arm().prefill.pool.n_pages


@pytest.mark.parametrize(
    ("ids_", "options", "words"),
    [
        ([], {}, "0 token ids are not from 1"),
        ([5] * 513, {}, "513 token ids are not from 1 to the 512 served"),
        ([5, 288], {}, "token id 288"),
        ([-1], {}, "token id -1"),
        ([5], {"through": "both"}, "prefill or decode"),
        ([5], {"arm": "nobody"}, "unknown arm 'nobody'"),
    ],
)
def test_logits_that_cannot_be_computed_are_refused_by_name(engine, ids_, options, words):
    with pytest.raises(ConfigError, match=words):
        engine.logits(ids_, **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ConfigError, "either `plan` or `plans`"),
        ({"plan": "w=bf16", "plans": {"a": "w=bf16"}}, ConfigError, "either `plan` or `plans`"),
        ({"plans": {}}, ConfigError, "at least one arm"),
        ({"plan": "w=fp7"}, ConfigError, "fp7"),
        ({"plan": "w=bf16", "device": "cuda:9"}, CapabilityError, "device 'cuda:9'"),
        ({"plan": "w=bf16", "kv_tokens": 0}, ConfigError, "kv_tokens is 0"),
        ({"plan": "w=bf16", "max_batch": 0}, ConfigError, "max_batch is 0"),
        ({"plan": "w=bf16", "chunk": 1.5}, ConfigError, "chunk is 1.5"),
        ({"plan": "w=bf16", "max_length": 0}, ConfigError, "max_length is 0"),
        ({"plan": "w=bf16", "max_length": "8"}, ConfigError, "max_length is '8'"),
        ({"plan": "w=bf16", "integrity": "some"}, ConfigError, "'some'"),
        ({"plan": "w=bf16", "kv_token": 64}, TypeError, "kv_token"),
        ({"plan": "w=bf16,kv=fp8:tensor:calibrated"}, ConfigError, "calibration"),
    ],
)
@pytest.mark.parametrize("model", ["llama", None])
def test_an_engine_that_cannot_be_is_refused_by_name_before_its_model_is_looked_for(tiny, model, options, error, words):
    with pytest.raises(error, match=words):
        Engine.load(tiny(model) if model else "no/such/model", **options)


def test_a_group_that_does_not_divide_is_refused_with_the_groups_that_do(tiny):
    engine = Engine.load(tiny("llama"), plan="w=int4:g128")
    with pytest.raises(ConfigError, match=r"32"):
        list(engine.generate([GenerateRequest(prompt="x", max_tokens=1)]))


@pytest.mark.parametrize("name", ["no/such", "nowhere.gguf", "/nothing/is/here"])
def test_a_model_that_is_not_there_is_refused_by_name(name):
    with pytest.raises(EngineError, match=name.split("/")[-1]):
        Engine.load(name, plan="w=bf16")


def test_a_failure_is_a_result_of_its_own_and_says_why(engine):
    (failure,) = engine.generate([GenerateRequest(prompt="", max_tokens=3, id="empty")])
    assert isinstance(failure, RequestFailure)
    assert (failure.id, failure.error, failure.message, failure.finish_reason) == (
        "empty",
        "bad_request",
        "the prompt is empty",
        "error",
    )


def test_plans_and_requests_are_read_without_torch():
    program = (
        "import sys; from evalsvc.engine import GenerateRequest, ScoreRequest, PrecisionPlan, parse_plan; "
        "parse_plan('w=bf16 > w=int4:g32'); GenerateRequest(prompt='x', max_tokens=1); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_name_that_the_engine_has_not_is_an_attribute_error():
    import evalsvc.engine

    with pytest.raises(AttributeError, match="has no attribute 'Machine'"):
        _ = evalsvc.engine.Machine
