"""What AWQ's quantization_config says of a matrix, and what is refused by name."""

import pytest

from evalsvc.engine.checkpoint.awq_config import read_awq
from evalsvc.errors import CapabilityError

ASKED = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def test_settings_have_old_names_and_values_of_their_own():
    for asked in ({"quant_method": "awq"}, ASKED, {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}):
        words = read_awq(asked).words
        assert (words.bits, words.size, words.symmetric) == (4, 128, False)
    assert read_awq(ASKED | {"zero_point": False, "group_size": -1}).words.size == 0
    assert read_awq(ASKED | {"zero_point": False}).words.symmetric


@pytest.mark.parametrize(
    ("listed", "left"),
    [
        (["gate"], ["1.mlp.gate", "11.mlp.gate"]),
        (["model.layers.1"], ["1.mlp.gate", "1.mlp.gate_proj"]),
        (["visual", "gate_proj"], ["1.mlp.gate_proj", "11.mlp.gate_proj"]),
        ([r"model\.layers\.\d\.mlp\.gate"], ["1.mlp.gate"]),
        (None, []),
        ([], []),
    ],
)
def test_modules_are_left_that_transformers_leaves(listed, left):
    """Held against its `should_convert_module` once: a whole name, a pattern up to a dot, or the end of a name."""
    config = read_awq(ASKED | {"modules_to_not_convert": listed})
    names = [f"{layer}.mlp.{leaf}" for layer in (1, 11) for leaf in ("gate", "gate_proj")]
    assert [name for name in names if config.words_of(f"model.layers.{name}") is None] == left
    assert config.words_of("lm_head") is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"version": "gemv"}, "has version 'gemv'; read is gemm"),
        ({"version": "marlin"}, "has version 'marlin'"),
        ({"format": "gemv_fast"}, "has format 'gemv_fast'"),
        ({"backend": "llm-awq"}, "has backend 'llm-awq', whose layout is not read"),
        ({"bits": 8}, "has bits 8, group_size 128 and zero_point True; read are 4 bits in groups of any size"),
        ({"group_size": "128"}, "group_size '128'"),
        ({"group_size": 0}, "group_size 0"),
        ({"zero_point": None}, "zero_point None"),
        ({"modules_to_not_convert": "gate"}, "has modules_to_not_convert that are no list of names"),
        ({"modules_to_not_convert": [1]}, "has modules_to_not_convert that are no list of names"),
        ({"modules_to_not_convert": ["("]}, "has a pattern '(' in modules_to_not_convert that is none"),
    ],
)
def test_what_is_not_read_is_refused_by_name(fields, says):
    with pytest.raises(CapabilityError) as error:
        read_awq(ASKED | fields)
    assert str(error.value).startswith("it is stored by awq, and its quantization_config ") and says in str(error.value)
