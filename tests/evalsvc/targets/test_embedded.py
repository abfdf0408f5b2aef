"""The embedded engine as a target: what is known before the first item, and the probe."""

import json
import math

import pytest
import torch

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest, ScoreRequest
from evalsvc.errors import ConfigError, EngineError
from evalsvc.targets.embedded import EmbeddedTarget, kl_by_stage


@pytest.fixture
def target(tiny_model, tmp_path):
    """`target("w=bf16", ...)`: a target whose arms are called a, b, ..."""

    def make(*plans, threads=1, calibration=None, inject=None, model=None, cache=tmp_path / "scales"):
        specs = {
            chr(ord("a") + i): ArmSpec(parse_plan(plan), calibration if "calibrated" in plan else None, inject or {})
            for i, plan in enumerate(plans)
        }
        return EmbeddedTarget(model or tiny_model, specs, threads=threads, batch=8, kv_tokens=512, cache=cache)

    yield make
    torch.set_num_threads(1)


@pytest.fixture
def calibration(tmp_path):
    path = tmp_path / "calibration.jsonl"
    path.write_text('{"prompt": "Some words to measure by."}\n')
    return path


def fingerprint(made, arm="a"):
    return made.facts(arm).fingerprint


def test_facts_are_canonical_and_name_both_stages(target, calibration):
    plan = "w=fp8 > kv=fp8:tensor:calibrated,w=int4:g32:sym"
    facts = target(plan, calibration=calibration, inject={"decode_k_scale": 0.5}).facts("a")
    assert facts.plan == str(parse_plan(plan))
    assert facts.injected == {"decode_k_scale": 0.5}
    prefill, decode = facts.stages["prefill"], facts.stages["decode"]
    assert (prefill["weights"], prefill["kv"], prefill["scales"], prefill["fault"]) == (
        "fp8:w8a8:channel:token",
        "bf16",
        None,
        None,
    )
    assert (decode["weights"], decode["kv"]) == ("int4:g32:sym", "fp8:tensor:calibrated")
    assert len(decode["scales"]) == 64 and decode["fault"] == {"k_scale": 0.5}
    assert prefill["checkpoint"] == decode["checkpoint"] and facts.details["threads"] == 1
    assert facts.details["max_length"] == 256  # what the model is made for; the pool holds more


def test_the_same_arm_has_the_same_fingerprint_under_any_name(target):
    made = target("w=fp8", "kv=bf16,w=fp8:channel")
    assert fingerprint(made, "a") == fingerprint(made, "b") == fingerprint(target("w=fp8"))


@pytest.mark.parametrize(
    "change",
    [
        {"plan": "w=fp8,kv=fp8"},
        {"plan": "w=fp8:w8a16"},
        {"threads": 2},
        {"inject": {"decode_k_scale": 1.0}, "plan": "kv=bf16 > kv=fp8:token-head"},
    ],
)
def test_whatever_could_change_an_answer_changes_the_fingerprint(target, change):
    plan = change.pop("plan", "w=fp8")
    honest = plan if "inject" in change else "w=fp8"
    assert fingerprint(target(plan, **change)) != fingerprint(target(honest))


def test_a_calibration_enters_by_its_scales_and_its_text(target, calibration):
    plan = "kv=bf16 > kv=fp8:tensor:calibrated"
    before = target(plan, calibration=calibration).facts("a")
    calibration.write_text('{"prompt": "Altogether other words."}\n')
    after = target(plan, calibration=calibration).facts("a")
    assert before.stages["decode"]["scales"] != after.stages["decode"]["scales"]
    assert before.fingerprint != after.fingerprint


def test_given_scales_enter_by_their_numbers_and_each_stage_by_its_own(tiny_model, tmp_path):
    def facts(plan: str, text: str):
        path = tmp_path / "scales.json"
        path.write_text(text)
        arms = {"a": ArmSpec(parse_plan(plan), scales=path)}
        return EmbeddedTarget(tiny_model, arms, threads=1, batch=8, kv_tokens=512, cache=None).facts("a")

    layers = json.loads((tiny_model / "config.json").read_text())["num_hidden_layers"]
    ones, halves = str([1.0] * layers), str([0.5] * layers)
    decode = "kv=bf16 > kv=fp8:given"
    first, spaced, other = (
        facts(decode, f'{{"k": {k},{space}"v": {ones}}}') for k, space in ((ones, ""), (ones, "   "), (halves, ""))
    )
    assert first.stages["prefill"]["scales"] is None and len(first.stages["decode"]["scales"]) == 64
    assert first.fingerprint == spaced.fingerprint != other.fingerprint
    assert first.stages["decode"]["scales"] != other.stages["decode"]["scales"]
    both = facts("kv=fp8:given > kv=int8:given", f'{{"k": {ones}, "v": {halves}}}')
    assert both.stages["prefill"]["scales"] == both.stages["decode"]["scales"] is not None


def test_scales_from_the_cache_are_the_scales_computed(target, calibration, tmp_path):
    plan = "kv=fp8:tensor:calibrated"
    computed, read, uncached = (
        target(plan, calibration=calibration, cache=cache).facts("a")
        for cache in (tmp_path / "c", tmp_path / "c", None)
    )
    assert computed.fingerprint == read.fingerprint == uncached.fingerprint
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_named(target, calibration, tmp_path):
    (tmp_path / "file").write_text("")
    made = target("kv=fp8:tensor:calibrated", calibration=calibration, cache=tmp_path / "file" / "scales")
    with pytest.raises(EngineError, match=r"file/scales: cannot be written .* EVALSVC_CACHE"):
        made.facts("a")


def test_a_calibration_that_no_format_reads_is_refused(target, calibration, tiny_model):
    spec = {"a": ArmSpec(parse_plan("w=fp8"), calibration)}
    with pytest.raises(ConfigError, match="remove the arm's `calibration`"):
        EmbeddedTarget(tiny_model, spec, threads=1, batch=8, kv_tokens=512, cache=None)


def test_a_request_is_answered_once_by_each_arm_that_it_names(target):
    made = target("w=bf16", "w=bf16 > w=int4:g32", "w=fp8")
    requests = [
        GenerateRequest(prompt="a prompt of some length", max_tokens=3, arms=("a", "b"), id="written"),
        ScoreRequest(context="another", continuations=("x", "y"), arms=("c", "b"), id="scored"),
    ]
    answers = sorted((answer.id, answer.arm) for answer in made.submit(requests))
    assert answers == [("scored", "b"), ("scored", "c"), ("written", "a"), ("written", "b")]
    proofs = {arm: made.proof(arm)["prefill"] for arm in "abc"}
    assert {arm: proof["shared_with"] for arm, proof in proofs.items()} == {"a": ["b"], "b": ["a"], "c": []}
    written, scored = (len(made.engine.text.encode(text)) for text in ("a prompt of some length", "another"))
    assert proofs["a"]["tokens_computed"] == proofs["b"]["tokens_computed"] == written + scored
    assert proofs["c"]["tokens_computed"] == scored
    with pytest.raises(ConfigError, match="name one of the arms a, b, c"):
        list(made.submit([GenerateRequest(prompt="a", max_tokens=1)]))


def test_one_by_one_or_together_the_distributions_are_equal_to_the_bit(target):
    made = target("w=bf16")
    texts = ["A first text, rather longer than the other one.", "Another."]
    together, alone = made.distributions("a", texts), made.distributions("a", texts, together=False)
    for stage in ("prefill", "decode"):
        assert all(torch.equal(x, y) for x, y in zip(together[stage], alone[stage], strict=True))
        assert [len(rows) for rows in together[stage]] == [len(texts[0][:48].encode()), len(texts[1])]


def test_kl_is_the_closed_form_and_counts_its_tokens():
    p, q = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])
    found = kl_by_stage({"decode": [p, p]}, {"decode": [q, p]})["decode"]
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert found["tokens"] == 2
    assert found["kl_max"] == pytest.approx(expected, abs=1e-7)
    assert found["kl_mean"] == pytest.approx(expected / 2, abs=1e-7)
    assert found["along"][0]["tokens"] == 2 and found["same_top1"] == 1


def test_kl_is_placed_by_passage_and_counts_where_the_likeliest_token_is_another():
    p, q = torch.zeros(12, 3), torch.zeros(12, 3)
    p[:, 0], q[:, 0] = 1.0, 1.0
    q[10, 1] = 5.0
    found = kl_by_stage({"prefill": [p, p[:3]]}, {"prefill": [q, q[:3]]})["prefill"]
    assert [(part["start"], part["tokens"], part["same_top1"]) for part in found["along"]] == [(0, 11, 1), (8, 4, 0.75)]
    assert found["kl_median"] == 0 < found["kl_max"]
