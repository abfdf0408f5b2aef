"""Scales of keys and values that a checkpoint's files hold: used where a plan asks for given ones, and nowhere else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.checkpoint.kv_scales import stored_scales
from evalsvc.engine.engine import Engine
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest
from evalsvc.errors import ConfigError, EvalsvcError

from . import compressing as ct
from .test_compressed import store

GIVEN = "w=bf16,kv=bf16 > w=bf16,kv=fp8:given"
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
NAMES = ("model.layers.{}.self_attn.{}_scale", "model.layers.{}.self_attn.{}_proj.output_scale")
K, V = (0.03, 0.05), (0.02, 0.04)


def with_scales(name: str = NAMES[0], heads: int = 0, edit: Any = None):
    """A tiny llama's tensors, and scales of two layers beside them."""

    def made(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for part, values in (("k", K), ("v", V)):
            for layer, value in enumerate(values):
                held = torch.tensor([value * (1 + head) for head in range(heads)]) if heads else torch.tensor([value])
                tensors[name.format(layer, part)] = held[:, None, None].clone() if heads else held
                tensors[f"model.layers.{layer}.self_attn.{part}_zero_point"] = torch.zeros(1)
            tensors[f"model.layers.{layer}.self_attn.q_scale"] = torch.ones(1)
        return tensors if edit is None else edit(tensors)

    return made


def config(**scheme: Any) -> dict[str, Any]:
    asked = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "config_groups": {}}
    return {"quantization_config": asked | {"kv_cache_scheme": SCHEME | scheme}}


def logits(path: Path, plan: str, scales: Path | None, ids: list[int]) -> Tensor:
    engine = Engine.load(path, plans={"a": ArmSpec(parse_plan(plan), scales=scales)}, kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=2)]))
    assert engine.proof()["mismatches"] == []
    return engine.logits(ids, through="decode")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("per", ["tensor", "head"])
def test_scales_of_the_files_are_those_of_a_file_of_them(rewritten, tmp_path, ids, name, per):
    heads = 2 if per == "head" else 0
    strategy = "attn_head" if heads else "tensor"
    path = rewritten("llama", with_scales(name, heads), config(strategy=strategy))
    held = {part: [[x, 2 * x] if heads else x for x in values] for part, values in (("k", K), ("v", V))}
    file = tmp_path / "scales.json"
    file.write_text(json.dumps(held))
    plan = f"w=bf16,kv=bf16 > w=bf16,kv=fp8:{per}:given"
    own = logits(path, plan, path, ids(30))
    assert torch.equal(own, logits(path, plan, file, ids(30)))
    file.write_text(json.dumps(held | {"k": [[9.0, 9.0] if heads else 9.0] * 2}))
    assert not torch.equal(own, logits(path, plan, file, ids(30)))


def test_a_plan_that_does_not_ask_for_them_is_answered_without(rewritten, tiny, ids):
    path = rewritten("llama", with_scales(), config())
    for plan in ("w=bf16,kv=bf16", "w=bf16,kv=fp8"):
        assert torch.equal(logits(path, plan, None, ids(30)), logits(tiny("llama"), plan, None, ids(30)))


def test_they_lie_beside_packed_weights(rewritten, ids):
    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return with_scales(edit=lambda held: held)(store(ct.PACKED4)(tensors))

    path = rewritten("llama", edit, ct.config_of(ct.PACKED4, ignore=("lm_head",), kv_cache_scheme=SCHEME))
    assert any(name.endswith("packed") for name in load_file(path / "model.safetensors"))
    own = logits(path, "w=stored,kv=bf16 > w=stored,kv=fp8:given", path, ids(30))
    assert not torch.equal(own, logits(path, "w=stored,kv=bf16", None, ids(30)))


def without(name: str):
    return with_scales(edit=lambda tensors: {key: t for key, t in tensors.items() if key != name})


REFUSED = {
    "none": (
        with_scales(),
        {"kv_cache_scheme": None},
        GIVEN,
        "the quantization_config of config.json has no kv_cache_scheme",
    ),
    "dynamic": (with_scales(), {"dynamic": True}, GIVEN, "its kv_cache_scheme is dynamic, so that it has none to give"),
    "zeros": (with_scales(), {"symmetric": False}, GIVEN, "its kv_cache_scheme is not symmetric, so that it has none"),
    "int8": (
        with_scales(),
        {"type": "int"},
        GIVEN,
        "is int of 8 bits, one scale a tensor, and not kv=fp8:tensor:given; write kv=int8:tensor:given",
    ),
    "head": (
        with_scales(),
        {},
        GIVEN.replace(":given", ":head:given"),
        "and not kv=fp8:head:given; write kv=fp8:tensor:given",
    ),
    "four bits": (
        with_scales(),
        {"num_bits": 4},
        GIVEN,
        "is float of 4 bits, one scale a tensor, and not kv=fp8:tensor:given",
    ),
    "a layer": (without(NAMES[0].format(0, "v")), {}, GIVEN, "its files do not hold the v_scale of every layer; fetch"),
    "all": (with_scales("model.layers.{}.{}_scale"), {}, GIVEN, "its files do not hold the k_scale of every layer"),
    "two of a layer": (
        with_scales(edit=lambda held: held | {"vision.layers.1.self_attn.v_scale": torch.tensor([9.0])}),
        {},
        GIVEN,
        "its files hold several scales of layer 1, one of them ",
    ),
    "several": (with_scales(heads=2), {}, GIVEN, "'k' must hold one number, for each of 2 layers"),
    "the last": (without(NAMES[0].format(1, "k")), {}, GIVEN, "'k' must hold one number, for each of 2 layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_scales_that_are_not_the_plans_are_refused(rewritten, name):
    edit, scheme, plan, says = REFUSED[name]
    path = rewritten("llama", edit, config(**scheme))
    if "kv_cache_scheme" in scheme:
        text = json.loads((path / "config.json").read_text())
        text["quantization_config"] |= {"kv_cache_scheme": None}
        (path / "config.json").write_text(json.dumps(text))
        with pytest.raises(EvalsvcError, match=says):
            stored_scales(path, parse_plan(plan).decode.kv)
        return
    with pytest.raises(EvalsvcError) as error:
        Engine.load(path, plans={"a": ArmSpec(parse_plan(plan), scales=path)}, kv_tokens=256).scales("a")
    assert f"scales {path}: " in str(error.value) and says in str(error.value)


def test_a_directory_that_is_no_models_is_refused_as_scales_of_its_arm_before_the_first_arm_is_loaded(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(ModelDirectory, "hashes", lambda _: pytest.fail("hashed the files"))
    arms = {"a": "w=bf16", "b": ArmSpec(parse_plan(GIVEN), scales=tmp_path)}
    for named, says in (("config.json", "is this a model directory"), ("model.safetensors", "fetch or convert")):
        with pytest.raises(ConfigError) as error:
            Engine.load(tiny("llama"), plans=arms)
        assert str(error.value).startswith(f"arm b: scales {tmp_path}: {named} is missing; {says}")
        (tmp_path / named).write_text("{}")
    with pytest.raises(ConfigError, match=f"^arm b: scales {tmp_path}: .*has no kv_cache_scheme"):
        Engine.load(tiny("llama"), plans=arms)
