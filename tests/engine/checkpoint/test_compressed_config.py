"""What a quantization_config says of a matrix, as the library's own matching has it, and what is refused by name."""

import json
from copy import deepcopy
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from torch import nn

from evalsvc.engine.checkpoint.compressed_config import read_compressed
from evalsvc.errors import CapabilityError

from . import compressing as ct


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.mlp = nn.Linear(32, 32), nn.Linear(32, 32), nn.ModuleDict()
        self.mlp["gate_proj"], self.mlp["down_proj"] = nn.Linear(32, 32), nn.Linear(32, 32)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.lm_head = nn.ModuleList([Layer(), Layer()]), nn.Linear(32, 32)


def group(strategy: str, *targets: str) -> Any:
    size = {"group_size": 32} if strategy == "group" else {}
    return ct.scheme("pack-quantized", targets, num_bits=4, strategy=strategy, **size)


@pytest.mark.parametrize(
    ("groups", "ignore"),
    [
        ((group("group", "Linear"),), ()),
        ((group("group", "Linear"),), ("lm_head", "re:.*mlp.*")),
        ((group("group", "Linear"),), ("re:mlp",)),
        ((group("group", "Linear"),), ("Linear",)),
        ((group("channel", "Linear"), group("group", r"re:.*\.q_proj$")), ("layers.1.k_proj",)),
        ((group("channel", r"re:.*_proj"), group("group", "layers.0.q_proj")), ()),
        ((group("channel", "re:.*q_proj"), group("group", r"re:.*\.q_proj"), group("tensor", "Linear")), ()),
        ((group("channel", "layers.0.q_proj"), group("group", "layers.0.q_proj")), ("re:.*1",)),
    ],
)
def test_each_matrix_has_the_group_that_the_library_gives_it(groups, ignore):
    asked = ct.config_of(*groups, ignore=ignore)["quantization_config"]
    with torch.device("meta"):
        model = Model()
    apply_quantization_config(model, QuantizationConfig.model_validate(deepcopy(asked)))
    config, given = read_compressed(asked), 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            theirs, mine = getattr(module, "quantization_scheme", None), config.group_of(name)
            assert (None if mine is None else mine.strategy) == (None if theirs is None else theirs.weights.strategy)
            given += mine is not None
    assert given or "Linear" in ignore


def test_strategies_that_are_not_written_are_those_of_the_group_size():
    for size, strategy in ((None, "tensor"), (-1, "channel"), (32, "group")):
        weights = {"num_bits": 4, "type": "int", "group_size": size}
        asked = {"format": "pack-quantized", "config_groups": {"a": {"targets": ["Linear"], "weights": weights}}}
        found = read_compressed(asked).group_of("x")
        assert found is not None and found.strategy == strategy


@pytest.mark.parametrize(
    ("scheme", "form"),
    [
        (ct.PACKED4, "int4:g32:sym"),
        (ct.ZEROS4, "int4:g32:asym"),
        (ct.CHANNEL4, ""),
        (ct.PACKED8, "int8:channel"),
        (ct.INT8_TENSOR, "int8:channel"),
        (ct.INT8_GROUPS, ""),
        (ct.FP8_TENSOR, "fp8:channel"),
        (ct.FP8_BLOCKS, "fp8:block128"),
        (ct.NVFP4, "nvfp4"),
        (ct.MXFP4, ""),
        (ct.scheme("pack-quantized", num_bits=4, strategy="group", group_size=16), ""),
    ],
)
def test_which_format_of_a_plan_has_the_same_codes(scheme, form):
    found = read_compressed(ct.config_of(scheme)["quantization_config"]).group_of("x")
    assert found is not None and found.held == form


WEIGHTS = ("config_groups", "group_0", "weights")
GROUP = WEIGHTS[:2]
SAID = {
    "sparse": ((), {"sparsity_config": {"format": "sparse-24-bitmask"}}, "asks a sparsity_config"),
    "rotated": ((), {"transform_config": {"config_groups": {"u": {}}}}, "asks a transform_config"),
    "pruned": ((), {"moe_sparsity_config": {"method": "prune"}}, "asks a moe_sparsity_config"),
    "not final": ((), {"quantization_status": "initialized"}, "has quantization_status 'initialized'"),
    "no groups": ((), {"config_groups": {}}, "has no config_groups"),
    "a preset": ((), {"config_groups": {"W4A16": ["Linear"]}}, "has a group W4A16 that does not say how"),
    "a format": (GROUP, {"format": "marlin-24"}, "has format 'marlin-24' in group group_0; read are pack-quantized"),
    "mxfp6": (GROUP, {"format": "mxfp6-pack-quantized"}, "has format 'mxfp6-pack-quantized'"),
    "mxfp4 of int": (
        GROUP,
        {"format": "mxfp4-pack-quantized"},
        "as int mxfp4-pack-quantized (4 bits, one scale a group",
    ),
    "mixed": (GROUP, {"format": None}, "has format 'mixed-precision' in group group_0"),
    "outputs": (GROUP, {"output_activations": {"num_bits": 8}}, "quantizes outputs in group group_0"),
    "dynamic": (WEIGHTS, {"dynamic": True}, "has dynamic weights in group group_0"),
    "order": (WEIGHTS, {"actorder": "other"}, "has actorder 'other' in group group_0, which is not read"),
    "order of channels": (
        WEIGHTS,
        {"actorder": "group", "strategy": "channel", "group_size": None},
        "one scale a channel, inputs in another order), which is not read",
    ),
    "bits": (WEIGHTS, {"num_bits": 3}, "as int pack-quantized (3 bits, one scale a group of 32), which is not read"),
    "bits as text": (WEIGHTS, {"num_bits": "4"}, "(4 bits, one scale a group of 32), which is not read"),
    "float": (WEIGHTS, {"type": "float"}, "stores group group_0 as float pack-quantized (4 bits"),
    "strategy": (WEIGHTS, {"strategy": "tensor_group"}, "one scale a tensor_group of 32), which is not read"),
    "no size": (WEIGHTS, {"group_size": None}, "one scale a group), which is not read"),
    "zeros of a tensor": (
        WEIGHTS,
        {"strategy": "tensor", "group_size": None, "symmetric": False},
        "one scale a tensor, zero points), which is not read",
    ),
    "blocks": (
        WEIGHTS,
        {"strategy": "block", "group_size": None, "block_structure": [64, 64]},
        "one scale a block), blocks of [64, 64], which is not read",
    ),
    "targets": (GROUP, {"targets": "Linear"}, "has targets of group group_0 that are no list of names"),
    "pattern": ((), {"ignore": ["re:*"]}, "has ignore with a pattern 're:*' that is none (nothing to repeat"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_not_read_is_refused_by_name(name):
    path, fields, says = SAID[name]
    asked = json.loads(json.dumps(ct.config_of(ct.PACKED4, format="mixed-precision")["quantization_config"]))
    place = asked
    for key in path:
        place = place[key]
    place |= fields
    with pytest.raises(CapabilityError) as error:
        read_compressed(asked)
    assert "it is stored by compressed-tensors, and its quantization_config " in str(error.value)
    assert says in str(error.value)


def test_settings_that_ask_nothing_are_read():
    nothing = {"sparsity_config": {}, "transform_config": {}, "kv_cache_scheme": None, "global_compression_ratio": 1.5}
    dense = {"sparsity_config": {"format": "dense"}, "quantization_status": "frozen"}
    for fields in (nothing, dense):
        assert read_compressed(ct.config_of(ct.PACKED4, **fields)["quantization_config"]).group_of("x") is not None
