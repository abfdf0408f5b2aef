"""Calibrated scales: what they are, that they reach the kernel, and faults injected where scales are read."""

import json
from pathlib import Path

import pytest
import torch

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.calibration import load_scales, read_prompts
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.pool import Scales
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest
from evalsvc.errors import CapabilityError, ConfigError

PROMPTS = ["the end of the beginning", "0123456789", "some other text\nof two lines"]
CALIBRATED = "kv=bf16 > kv=fp8:tensor:calibrated"


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS) + "\n\n")
    return path


@pytest.fixture
def engine_of(tiny, prompts):
    def make(arms: dict[str, dict], **options) -> Engine:
        specs = {
            name: ArmSpec(parse_plan(CALIBRATED), prompts, inject)
            if inject is not None
            else ArmSpec(parse_plan("w=bf16"))
            for name, inject in arms.items()
        }
        return Engine.load(tiny("llama"), plans=specs, kv_tokens=1024, poison=True, **options)

    return make


def test_scales_are_the_largest_magnitudes_over_448(engine_of, reference, tiny, prompts):
    """Against keys after rope and values of transformers' own cache, in the same bf16 weights."""
    from transformers import AutoModelForCausalLM

    engine = engine_of({"a": {}})
    scales = engine.scales("a")
    assert scales is not None
    model = AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.bfloat16, attn_implementation="eager")
    amax = torch.zeros(2, 2)
    for prompt in PROMPTS:
        with torch.no_grad():
            cache = model(torch.tensor([engine.text.encode(prompt)]), use_cache=True).past_key_values
        for layer in range(2):
            entry = cache.layers[layer]
            amax[0, layer] = max(amax[0, layer], entry.keys.abs().max().float())
            amax[1, layer] = max(amax[1, layer], entry.values.abs().max().float())
    assert torch.allclose(torch.stack([scales.k, scales.v]) * 448, amax, rtol=2**-6)
    assert not torch.isclose(scales.k, torch.tensor(1.0)).any()


def test_scales_are_kept_in_a_file_and_a_damaged_file_is_computed_again(engine_of, tmp_path):
    first = engine_of({"a": {}}, cache=tmp_path).scales("a")
    (path,) = tmp_path.glob("*.json")
    held = load_scales(path)
    assert first is not None and held is not None
    assert torch.equal(held.k, first.k) and torch.equal(held.v, first.v)
    path.write_text('{"k": [1')
    again = engine_of({"a": {}}, cache=tmp_path).scales("a")
    assert again is not None and torch.equal(again.k, first.k)
    assert load_scales(path) is not None
    assert list(tmp_path.iterdir()) == [path]


def test_the_scales_of_one_stage_reach_its_pool_and_the_proofs_hash(engine_of):
    engine = engine_of({"a": {}, "plain": None})
    arm, scales = engine.arm("a"), engine.scales("a")
    assert scales is not None and torch.equal(arm.decode.pool.k_scale, scales.k)
    assert torch.equal(arm.decode.pool.v_scale, scales.v)
    assert arm.scales_sha256 and engine.arm("plain").scales_sha256 is None


def test_arms_calibrated_on_other_prompts_share_no_stage(tiny, prompts, tmp_path):
    """One stage for both would answer with the first arm's scales."""
    (tmp_path / "other.jsonl").write_text('{"prompt": "zzzz"}')
    plan = parse_plan(CALIBRATED)
    specs = {"a": ArmSpec(plan, prompts), "b": ArmSpec(plan, tmp_path / "other.jsonl"), "c": ArmSpec(plan, prompts)}
    engine = Engine.load(tiny("llama"), plans=specs, kv_tokens=256)
    a, b, c = (engine.arm(name) for name in "abc")
    assert a.decode is c.decode and a.decode is not b.decode and a.prefill is b.prefill
    ours, theirs = a.decode.pool.k_scale, b.decode.pool.k_scale
    assert ours is not None and theirs is not None and not torch.equal(ours, theirs)


def test_calibration_runs_in_the_prefill_weights(tiny, prompts):
    """They compute the keys that are handed over, whatever decode's weights are."""
    calibrated = "kv=bf16 > w={},kv=fp8:tensor:calibrated"
    plans = {f"{p}/{d}": f"w={p},{calibrated.format(d)}" for p in ("int4:g32", "bf16") for d in ("int4:g32", "bf16")}
    specs = {name: ArmSpec(parse_plan(plan), prompts) for name, plan in plans.items()}
    engine = Engine.load(tiny("llama"), plans=specs, kv_tokens=256)
    k = {name: engine.scales(name).k for name in plans}  # pyright: ignore[reportOptionalMemberAccess]
    for decode in ("int4:g32", "bf16"):
        assert torch.equal(k[f"int4:g32/{decode}"], k["int4:g32/int4:g32"])
        assert torch.equal(k[f"bf16/{decode}"], k["bf16/bf16"])
    assert not torch.equal(k["int4:g32/bf16"], k["bf16/bf16"])


def outputs(engine, arm, ids):
    logits = engine.logits(ids(60, 5), arm, "decode")
    answer = next(engine.generate([GenerateRequest(prompt=ids(30, 6), max_tokens=12)], arm))
    return logits, answer.token_ids


def test_a_fault_factor_of_one_gives_the_undamaged_bits_and_a_quarter_does_not(engine_of, ids):
    engine = engine_of({"honest": {}, "one": {"decode_k_scale": 1.0}, "quarter": {"decode_k_scale": 0.25}})
    honest, one, quarter = (outputs(engine, arm, ids) for arm in ("honest", "one", "quarter"))
    assert torch.equal(honest[0], one[0]) and honest[1] == one[1]
    assert (honest[0] - quarter[0]).abs().max() > 0.1
    assert engine.logits(ids(60, 5), "quarter").equal(engine.logits(ids(60, 5), "honest"))  # prefill is whole
    assert engine.proof("quarter")["mismatches"] == []
    assert engine.proof("quarter")["decode"]["kv"]["k_read_factor"] == 0.25


def test_a_fault_that_was_not_asked_is_a_mismatch(engine_of, ids):
    engine = engine_of({"honest": {}})
    engine.arm().decode.pool.k_read_factor = 0.5
    assert any("factor 0.5" in m for m in engine.proof()["mismatches"])


def test_doubling_a_scale_on_both_sides_changes_little_and_on_one_side_much(engine_of, ids):
    """A scale that never reaches the kernel would pass the first and fail the second."""
    engine = engine_of({"a": {}, "plain": None})
    pool, plain = engine.arm("a").decode.pool, engine.logits(ids(60, 5), "plain", "decode")

    def distance(k: float, v: float, read: float = 1.0) -> float:
        scales = engine.scales("a")
        assert isinstance(scales, Scales)
        pool.k_scale, pool.v_scale, pool.k_read_factor = scales.k * k, scales.v * v, read
        return float((engine.logits(ids(60, 5), "a", "decode") - plain).abs().mean())

    honest = distance(1, 1)
    assert honest > 0
    assert distance(2, 2) < 1.5 * honest  # another rounding of the same size
    assert distance(1, 1, read=2.0) > 3 * honest
    assert distance(1 / 64, 1) > 3 * honest  # keys are cut off at 448


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no prompt"),
        ('{"prompt": "a"}\n{"prompt": ""}', ":2: expected"),
        ('{"prompt": "a"}\nnot json', ":2: expected"),
        ('{"text": "a"}', ":1: expected"),
        ("[1]", ":1: expected"),
    ],
)
def test_a_broken_calibration_file_names_the_line(tmp_path, content, words):
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_prompts(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")


def test_an_arm_that_cannot_be_served_as_written_is_refused(prompts):
    calibrated, plain = parse_plan(CALIBRATED), parse_plan("w=bf16")
    for spec, words in [
        (ArmSpec(calibrated), "give the arm `calibration"),
        (ArmSpec(plain, prompts), "remove the arm's `calibration`"),
        (ArmSpec(plain, None, {"decode_q_scale": 0.5}), "unknown fault"),
    ]:
        with pytest.raises(ConfigError, match=words):
            spec.check()
    with pytest.raises(CapabilityError, match="needs a KV format with a scale"):
        ArmSpec(plain, None, {"decode_k_scale": 0.5}).check()
