"""What GPTQ's quantization_config says of a matrix, and what is refused by name."""

import pytest

from evalsvc.engine.checkpoint.gptq_config import read_gptq
from evalsvc.errors import CapabilityError

ASKED = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


def test_settings_that_are_not_written_are_the_formats_own():
    config = read_gptq({"quant_method": "gptq", "bits": 4})
    assert (config.words.size, config.words.symmetric, config.version) == (128, True, "gptq")
    assert not config.words.ordered
    assert read_gptq(ASKED | {"group_size": -1}).words.size == 0
    assert read_gptq(ASKED | {"format": "gptq_v2"}).version == "gptq_v2"
    assert read_gptq(ASKED | {"format": "gptq_v2", "checkpoint_format": "gptq"}).version == "gptq"


def test_the_first_pattern_that_matches_from_the_start_decides():
    dynamic = {"-:.*gate$": {}, "+:.*down": {"bits": 8}, "model.layers.1": {"group_size": 32}, ".*": {"sym": False}}
    config = read_gptq(ASKED | {"dynamic": dynamic})
    found = {
        name: None if words is None else (words.bits, words.size, words.symmetric)
        for name in ("model.layers.1.mlp.gate", "model.layers.1.down", "model.layers.1.up", "layers.1.up")
        for words in [config.words_of(name)]
    }
    assert list(found.values()) == [None, (8, 128, True), (4, 32, True), (4, 128, False)]


def test_inputs_in_another_order_take_several_groups():
    dynamic = {"a": {"group_size": -1}, "b": {"desc_act": False}}
    config = read_gptq(ASKED | {"desc_act": True, "dynamic": dynamic})
    found = [words.ordered for name in "abc" if (words := config.words_of(name))]
    assert found == [False, False, True]
    assert not read_gptq(ASKED | {"desc_act": True, "group_size": -1}).words.ordered


def test_modules_that_a_list_of_them_does_not_name_are_plain():
    listed = {"modules_in_block_to_quantize": [["self_attn.k_proj", "self_attn.v_proj"], ["mlp.up_proj"]]}
    config = read_gptq(ASKED | listed)
    assert config.words_of("model.layers.7.mlp.up_proj") and config.words_of("model.layers.0.self_attn.v_proj")
    assert config.words_of("model.layers.7.mlp.down_proj") is None
    assert config.words_of("model.layers.7.mlp.shared_expert.up_proj") is None


@pytest.mark.parametrize("said", [None, True, False])
def test_a_head_is_quantized_where_that_is_said(said):
    fields = {} if said is None else {"lm_head": said}
    assert (read_gptq(ASKED | fields).words_of("lm_head") is not None) == (said is True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"bits": 3}, "has bits 3, group_size 128 and sym True; read are 4 and 8 bits in groups of any size"),
        ({"bits": "4"}, "has bits '4', group_size"),
        ({"group_size": 0}, "group_size 0 and sym"),
        ({"group_size": None}, "group_size None and sym"),
        ({"sym": None}, "sym None"),
        ({"checkpoint_format": "marlin"}, "has checkpoint_format 'marlin'; read are gptq and gptq_v2"),
        ({"is_marlin_format": True}, "asks is_marlin_format, which is not read"),
        ({"rotation": "hadamard"}, "asks rotation, which is not read"),
        ({"adapter": {"name": "lora"}}, "asks adapter, which is not read"),
        ({"pack_dtype": "int64"}, "has pack_dtype 'int64'; read is int32"),
        ({"dynamic": ["x"]}, "has dynamic settings that are no table of patterns"),
        ({"dynamic": {"(": {}}}, "has a pattern '(' in dynamic that is none"),
        ({"dynamic": {"x": 8}}, "has dynamic settings for 'x' that are none (8)"),
        ({"dynamic": {"+:x": {"bits": 2}}}, "has bits 2, group_size 128 and sym True for '+:x'; read are"),
        ({"modules_in_block_to_quantize": "x"}, "has modules_in_block_to_quantize that is no list of names"),
        ({"modules_in_block_to_quantize": [[1]]}, "has modules_in_block_to_quantize that is no list of names"),
    ],
)
def test_what_is_not_read_is_refused_by_name(fields, says):
    with pytest.raises(CapabilityError) as error:
        read_gptq(ASKED | fields)
    assert str(error.value).startswith("it is stored by gptq, and its quantization_config ") and says in str(
        error.value
    )
