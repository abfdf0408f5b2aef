"""Calibrated scales: what they are, that they reach the kernel, and faults injected where scales are read."""

import json
import re
from pathlib import Path

import pytest
import torch

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.arms import Arms
from evalsvc.engine.calibration import load_amax, read_prompts, scales_from
from evalsvc.engine.engine import Engine
from evalsvc.engine.precision import KVFormat, parse_plan
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


@pytest.fixture(scope="module")
def largest(tiny) -> torch.Tensor:
    """Per layer and head of transformers' own cache, keys after rope, in bf16 weights. Shape: (2, layers, kv_heads)."""
    from transformers import AutoModelForCausalLM

    engine = Engine.load(tiny("llama"), "w=bf16")
    model = AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.bfloat16, attn_implementation="eager")
    amax = torch.zeros(2, 2, 2)
    for prompt in PROMPTS:
        with torch.no_grad():
            cache = model(torch.tensor([engine.text.encode(prompt)]), use_cache=True).past_key_values
        for layer in range(2):
            for part, held in enumerate((cache.layers[layer].keys, cache.layers[layer].values)):
                amax[part, layer] = torch.maximum(amax[part, layer], held[0].abs().amax(dim=(1, 2)).float())
    return amax


@pytest.mark.parametrize(("kind", "code"), [("fp8", 448), ("int8", 127)])
def test_scales_are_the_largest_magnitudes_over_the_largest_code(tiny, prompts, largest, kind, code):
    plans = {per: parse_plan(f"kv=bf16 > kv={kind}:{per}:calibrated") for per in ("tensor", "head")}
    engine = Engine.load(tiny("llama"), plans={per: ArmSpec(plan, prompts) for per, plan in plans.items()})
    tensor, head = (engine.scales(per)["decode"] for per in ("tensor", "head"))
    assert torch.allclose(torch.stack([head.k, head.v]) * code, largest, rtol=2**-6)
    assert torch.equal(tensor.k, head.k.amax(1)) and torch.equal(tensor.v, head.v.amax(1))
    assert not torch.isclose(head.k, torch.tensor(1.0)).any()
    assert (head.k[:, 0] / head.k[:, 1] - 1).abs().min() > 0.02  # heads really differ


def test_a_head_without_magnitude_has_scale_one():
    scales = scales_from(torch.tensor([[[0.0, 4.48]], [[2.24, 0.0]]]), KVFormat("fp8", "head:calibrated"))
    assert scales.k.tolist() == [[1.0, pytest.approx(0.01)]] and scales.v.tolist() == [[pytest.approx(0.005), 1.0]]


def test_magnitudes_are_kept_in_a_file_and_a_damaged_file_is_computed_again(engine_of, tmp_path):
    first = engine_of({"a": {}}, cache=tmp_path).scales("a")["decode"]
    (path,) = tmp_path.glob("*.json")
    held = load_amax(path)
    assert held is not None and torch.equal(scales_from(held, KVFormat("fp8", "tensor:calibrated")).k, first.k)
    for damage in ('{"k": [1', '{"k": [1.0], "v": [1.0]}', '{"k": [[1.0]], "v": [[1.0, 2.0]]}', "[]"):
        path.write_text(damage)
        assert load_amax(path) is None
        again = engine_of({"a": {}}, cache=tmp_path).scales("a")["decode"]
        assert torch.equal(again.k, first.k) and torch.equal(again.v, first.v)
    assert load_amax(path) is not None
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("per", ["tensor", "head"])
def test_the_scales_of_each_stage_reach_its_pool(tiny, prompts, per):
    other = {"tensor": "head", "head": "tensor"}[per]
    plan = parse_plan(f"kv=int8:{per}:calibrated > kv=fp8:{other}:calibrated")
    engine = Engine.load(tiny("llama"), plans={"a": ArmSpec(plan, prompts), "plain": ArmSpec(parse_plan("w=bf16"))})
    arm, scales = engine.arm("a"), engine.scales("a")
    assert set(scales) == {"prefill", "decode"} and engine.scales("plain") == {}
    for name, stage in (("prefill", arm.prefill), ("decode", arm.decode)):
        assert torch.equal(stage.pool.k_scale, scales[name].k) and torch.equal(stage.pool.v_scale, scales[name].v)
    assert scales["prefill"].k.ndim + scales["decode"].k.ndim == 3


def given_file(path: Path, k: object, v: object) -> Path:
    path.write_text(json.dumps({"k": k, "v": v}))
    return path


@pytest.mark.parametrize("fmt", ["fp8:tensor", "fp8:head", "int8:tensor", "int8:head"])
def test_given_scales_are_worth_what_the_same_scales_calibrated_are(tiny, prompts, tmp_path, ids, fmt):
    calibrated = ArmSpec(parse_plan(f"kv={fmt}:calibrated"), prompts)
    scales = Engine.load(tiny("llama"), plans={"a": calibrated}).scales("a")["decode"]
    path = given_file(tmp_path / "scales.json", scales.k.tolist(), scales.v.tolist())
    given = ArmSpec(parse_plan(f"kv={fmt}:given"), scales=path)
    engine = Engine.load(tiny("llama"), plans={"a": calibrated, "b": given}, kv_tokens=256, poison=True)
    assert torch.equal(engine.logits(ids(40), "a", "decode"), engine.logits(ids(40), "b", "decode"))
    assert engine.arm("a").decode is not engine.arm("b").decode
    other = given_file(tmp_path / "other.json", (scales.k * 3).tolist(), scales.v.tolist())
    tripled = Engine.load(
        tiny("llama"), plans={"c": ArmSpec(parse_plan(f"kv={fmt}:given"), scales=other)}, kv_tokens=256
    )
    assert not torch.equal(engine.logits(ids(40), "b", "decode"), tripled.logits(ids(40), "c", "decode"))


@pytest.mark.parametrize(
    ("content", "fmt", "words"),
    [
        ("{", "fp8:given", "cannot be read"),
        ("[" * 100_000, "fp8:given", 'expected {"k"'),
        ('{"k": [1' + "0" * 400 + ', 1], "v": [1, 1]}', "fp8:given", 'expected {"k"'),
        ('{"k": [1, 1]}', "fp8:given", 'expected {"k"'),
        ('{"k": [1, "1"], "v": [1, 1]}', "fp8:given", 'expected {"k"'),
        ('{"k": [[1, 1], [1]], "v": [1, 1]}', "fp8:head:given", 'expected {"k"'),
        ("[1, 2]", "fp8:given", 'expected {"k"'),
        ('{"k": [1, 1], "v": [1, 1], "q": [1, 1]}', "fp8:given", "unknown key 'q'"),
        ('{"k": [1, 1, 1], "v": [1, 1]}', "fp8:given", "'k' must hold one number, for each of 2 layers"),
        ('{"k": [1, 1], "v": [1]}', "fp8:given", "'v' must hold one number"),
        ('{"k": [1, 1], "v": [1, 1]}', "fp8:head:given", "a list of 2 numbers, one a KV head"),
        ('{"k": [[1, 1], [1, 1]], "v": [1, 1]}', "int8:given", "'k' must hold one number"),
        ('{"k": [1, 0], "v": [1, 1]}', "fp8:given", "'k' holds a scale that is not a positive"),
        ('{"k": [1, 1], "v": [1, -1]}', "fp8:given", "'v' holds a scale that is not a positive"),
        ('{"k": [1, NaN], "v": [1, 1]}', "fp8:given", "'k' holds a scale that is not a positive"),
        ('{"k": [1, 1e-60], "v": [1, 1]}', "fp8:given", "'k' holds a scale that is not a positive"),
        ('{"k": [1, 1e60], "v": [1, 1]}', "fp8:given", "'k' holds a scale that is not a positive"),
    ],
)
def test_a_file_of_scales_is_read_strictly_and_before_any_weight(tiny, tmp_path, monkeypatch, content, fmt, words):
    path = tmp_path / "scales.json"
    path.write_text(content)
    engine = Engine.load(tiny("llama"), plans={"a": ArmSpec(parse_plan(f"kv={fmt}"), scales=path)})
    monkeypatch.setattr(Arms, "_weight_set", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(ConfigError, match=f"scales.json: .*{re.escape(words)}"):
        engine.scales("a")


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
    k = {name: engine.scales(name)["decode"].k for name in plans}
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
        scales = engine.scales("a")["decode"]
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
        ("[" * 100_000, ":1: expected"),
    ],
)
def test_a_broken_calibration_file_names_the_line(tmp_path, content, words):
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_prompts(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt": "a"}\n', encoding="utf-8-sig")
    assert read_prompts(path) == ["a"]


def test_an_arm_that_cannot_be_served_as_written_is_refused(prompts):
    calibrated, plain, given = (parse_plan(text) for text in (CALIBRATED, "w=bf16", "kv=fp8:given > kv=bf16"))
    for spec, words in [
        (ArmSpec(calibrated), "give the arm `calibration"),
        (ArmSpec(plain, prompts), "remove the arm's `calibration`"),
        (ArmSpec(given), "give the arm `scales"),
        (ArmSpec(given, prompts, scales=prompts), "remove the arm's `calibration`"),
        (ArmSpec(calibrated, prompts, scales=prompts), "remove the arm's `scales`"),
        (ArmSpec(plain, None, {"decode_q_scale": 0.5}), "unknown fault"),
    ]:
        with pytest.raises(ConfigError, match=words):
            spec.check()
    with pytest.raises(CapabilityError, match="needs a KV format with a scale"):
        ArmSpec(plain, None, {"decode_k_scale": 0.5}).check()
    ArmSpec(parse_plan("kv=int8"), None, {"decode_k_scale": 0.5}).check()
