"""Bytes of checkpoints as they are stored, from their configurations."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from evalsvc.capacity.model import RENAMED, model_of, read_model
from evalsvc.capacity.sharing import Devices, place
from evalsvc.engine.precision import parse_plan
from evalsvc.errors import CapabilityError, ConfigError

from .test_model import MIXED, TINY

GPUS = Devices(count=8, memory_bytes=141 * 10**9)
KIMI = json.loads((Path(model_of.__code__.co_filename).parent / "models" / "kimi-k2.json").read_text())
IGNORED = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
NAMES = {
    **{name: config for name, config in TINY.items() if config.model_type not in RENAMED},
    **{name: AutoConfig.for_model(kind, **fields) for name, (kind, fields) in MIXED.items() if kind not in RENAMED},
}


def compressed(weights: dict[str, Any], ignore: tuple | list = ("lm_head",), **fields: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None} | fields
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {"group_0": group},
    }


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


def placed(config: dict[str, Any], plan: str, devices: Devices = GPUS):
    return place(model_of(config, "here"), parse_plan(plan).decode, devices)


def test_settings_of_an_older_folder_beside_its_configuration_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KIMI))
    plain = place(read_model(tmp_path), parse_plan("w=stored").decode, GPUS)
    settings = {key: value for key, value in GPTQ.items() if key != "quant_method"}
    (tmp_path / "quantize_config.json").write_text(json.dumps(settings))
    expected = placed(KIMI | {"quantization_config": GPTQ}, "w=stored").weights_bytes
    for named in (tmp_path, tmp_path / "config.json"):
        assert place(read_model(named), parse_plan("w=stored").decode, GPUS).weights_bytes == expected
    assert expected < plain.weights_bytes / 3
    (tmp_path / "quantize_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"quantize_config\.json: is no JSON"):
        read_model(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_named_as_the_definition_names_them(name):
    config = NAMES[name]
    with torch.device("meta"):
        definition = AutoModelForCausalLM.from_config(config)
    linears = {n: m.weight.numel() for n, m in definition.named_modules() if isinstance(m, nn.Linear)}
    model, named = model_of(config.to_dict(), name), {}
    for part in (part for part in model.parts if part.packed):
        names = [f"model.layers.{layer}.{leaf}" for layer in model.layers[part.on] for leaf in part.leaves]
        assert len(names) * part.of_layer == part.count, part
        named |= dict.fromkeys(names, part.out * part.inputs)
    experts = {n for n in named if ".experts." in n}
    routers = {n for n in linears if n.endswith((".gate", "shared_expert_gate", "weights_proj", "lm_head"))}
    assert {n: size for n, size in named.items() if n not in experts} == {
        n: size for n, size in linears.items() if n not in routers
    }
    assert all(hasattr(definition.get_submodule(n.partition(".*")[0]), "gate_up_proj") for n in experts)


@pytest.mark.parametrize("devices", [GPUS, replace(GPUS, experts=True), replace(GPUS, data_attention=True)])
@pytest.mark.parametrize("nested", [False, True])
def test_kimi_k2_thinking_takes_int4_experts_and_the_rest_in_bf16(nested, devices):
    asked = compressed(INT4, IGNORED)
    text = KIMI | {"quantization_config": asked}
    config = {"model_type": "kimi_k25", "text_config": text} if nested else text
    found = placed(config, "w=stored", devices)
    assert found.weights == placed(KIMI, "w=int4:g32", replace(devices, packs="experts")).weights
    assert found.weights["experts"] < 0.3 * placed(KIMI, "w=bf16", devices).weights["experts"]


def test_a_quantization_beside_the_language_model_is_its_own():
    asked = compressed(INT4, IGNORED)
    config = {"model_type": "kimi_k25", "text_config": KIMI, "quantization_config": asked}
    assert placed(config, "w=stored").weights == placed(KIMI | {"quantization_config": asked}, "w=stored").weights


def test_plain_numbers_are_bf16():
    assert placed(KIMI, "w=stored").weights == placed(KIMI, "w=bf16").weights


def test_fp8_in_blocks_is_that_but_for_what_is_not_converted():
    whole = placed(KIMI | {"quantization_config": BLOCKS}, "w=stored").weights
    assert whole == placed(KIMI, "w=fp8:block128").weights
    left = BLOCKS | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp", "shared_experts", "kv_b_proj"]}
    found = placed(KIMI | {"quantization_config": left}, "w=stored").weights
    assert found["experts"] == whole["experts"] and found["MLP"] == placed(KIMI, "w=bf16").weights["MLP"]
    assert found["shared experts"] == placed(KIMI, "w=bf16").weights["shared experts"]
    more = 61 * 8 * 256 * 512  # of kv_b_proj on a device: 64 heads of 128 + 128 over eight
    assert found["attention"] - whole["attention"] == more - 61 * (8 * 256 // 128) * 4 * 4


def test_layers_and_experts_are_told_apart():
    config = read_json("qwen3-30b-a3b")
    one = 3 * config["moe_intermediate_size"] * config["hidden_size"]
    ignored = ["lm_head", "model.layers.3.mlp.experts.7.up_proj", r"re:model\.layers\.(0|1)\..*"]
    alone = Devices()
    found = placed(config | {"quantization_config": compressed(INT4, ignored)}, "w=stored", alone)
    bf16, int4 = (placed(config, plan, alone).weights for plan in ("w=bf16", "w=int4:g32"))
    packed = one // 2 + one // 32 * 2
    plain = (2 * config["num_experts"] + 1 / 3) * (2 * one - packed)
    assert found.weights["experts"] == int4["experts"] + plain
    assert found.weights["attention"] == int4["attention"] + (bf16["attention"] - int4["attention"]) * 2 // 48
    with pytest.raises(CapabilityError, match="experts of one layer are stored in several formats"):
        placed(config | {"quantization_config": compressed(INT4, ignored)}, "w=stored", replace(GPUS, experts=True))


def test_a_head_is_packed_where_the_files_have_it_so():
    config = read_json("llama-3.1-8b")
    asked = {"format": "float-quantized"}
    found = [
        placed(config | {"quantization_config": compressed(FP8, ignore, **asked)}, "w=stored").weights
        for ignore in (["lm_head"], [])
    ]
    assert found == [placed(config, plan).weights for plan in ("w=fp8:w8a16", "w=fp8:w8a16:lm_head")]


@pytest.mark.parametrize(
    ("asked", "plan"),
    [
        (GPTQ, "w=int4:g128"),
        (GPTQ | {"sym": False, "group_size": 32}, "w=int4:g32:asym"),
        (GPTQ | {"bits": 8, "group_size": -1}, "w=int8:w8a16"),
        (GPTQ | {"lm_head": True}, "w=int4:g128:lm_head"),
        (AWQ, "w=int4:g128:asym"),
        (AWQ | {"zero_point": False, "group_size": 64}, "w=int4:g64"),
    ],
)
def test_gptq_and_awq_are_the_plans_format_that_has_their_codes(asked, plan):
    config = read_json("llama-3.1-8b")
    found = placed(config | {"quantization_config": asked}, "w=stored").weights
    assert found == placed(config, plan).weights


def test_inputs_of_one_group_are_in_no_other_order():
    config = read_json("llama-3.1-8b")
    asked = GPTQ | {"bits": 8, "group_size": -1, "desc_act": True}
    found = placed(config | {"quantization_config": asked}, "w=stored").weights
    assert found == placed(config, "w=int8:w8a16").weights


def test_what_awq_does_not_convert_is_bf16():
    config = read_json("llama-3.1-8b")
    left = AWQ | {"modules_to_not_convert": ["self_attn"]}
    found = placed(config | {"quantization_config": left}, "w=stored").weights
    bf16, int4 = (placed(config, plan).weights for plan in ("w=bf16", "w=int4:g128:asym"))
    assert found["MLP"] == int4["MLP"] and found["attention"] == int4["attention"]  # no name ends so
    left = AWQ | {"modules_to_not_convert": [r"model\.layers\.\d+\.self_attn", "down_proj"]}
    found = placed(config | {"quantization_config": left}, "w=stored").weights
    assert found["attention"] == bf16["attention"]
    assert 3 * found["MLP"] == 2 * int4["MLP"] + bf16["MLP"]


def test_what_a_pattern_of_gptq_leaves_out_is_bf16():
    config = read_json("qwen3-30b-a3b")
    left = GPTQ | {"dynamic": {r"-:.*self_attn": {}, r".*experts\.[0-9]\.": {"group_size": 32}}}
    found = placed(config | {"quantization_config": left}, "w=stored", Devices()).weights
    bf16, wide, narrow = (placed(config, f"w={w}", Devices()).weights for w in ("bf16", "int4:g128", "int4:g32"))
    ten = 10 / config["num_experts"]
    assert found["attention"] == bf16["attention"]
    assert found["experts"] == narrow["experts"] * ten + wide["experts"] * (1 - ten)


def read_json(name: str) -> dict[str, Any]:
    return json.loads((Path(model_of.__code__.co_filename).parent / "models" / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            compressed(INT4 | {"strategy": "channel", "group_size": None}),
            "is stored as pack-quantized (4 bits, one scale",
        ),
        (compressed(INT4, format="marlin-24"), "has format 'marlin-24' in group group_0"),
        ("gptq", "its quantization_config is 'gptq', which is no table of settings"),
        ({"quant_method": "bitsandbytes"}, "stored by 'bitsandbytes' in a way that no plan's format is"),
        ({"quant_method": "gptq"}, "it is stored by gptq, and its quantization_config has bits 0"),
        (GPTQ | {"bits": 8}, "is stored as gptq (8 bits, one scale a group of 128), which is no plan's format"),
        (
            AWQ | {"version": "gemv"},
            "it is stored by awq, and its quantization_config has version 'gemv'; read is gemm",
        ),
        (AWQ | {"group_size": -1}, "is stored as awq (4 bits, one scale a channel, zero points), which is no plan's"),
        (
            GPTQ | {"desc_act": True},
            "one scale a group of 128), inputs perhaps in another order (desc_act; only its files tell), which is no ",
        ),
        ({"quant_method": "mxfp4"}, "stored by 'mxfp4'"),
    ],
)
def test_what_no_plan_holds_is_refused_under_stored_alone(asked, says):
    config = KIMI | {"quantization_config": asked}
    assert placed(config, "w=bf16").weights == placed(KIMI, "w=bf16").weights
    with pytest.raises(CapabilityError) as error:
        placed(config, "w=stored")
    assert says in str(error.value) and str(error.value).endswith("name a weights format in place of `stored`")


def test_names_that_are_not_known_and_experts_alone_are_refused():
    with pytest.raises(CapabilityError, match="how files of gpt_oss name their matrices is not known"):
        place(read_model("gpt-oss-120b"), parse_plan("w=stored").decode, GPUS)
    with pytest.raises(ConfigError, match="under w=stored the checkpoint says"):
        placed(KIMI, "w=stored", replace(GPUS, packs="experts"))
