"""mxfp4 as gpt_oss is published: values by hand, transformers' own decoding, and a whole model."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.checkpoint.mxfp4 import mxfp4_values
from evalsvc.engine.engine import Engine
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.weights import WeightSet
from evalsvc.errors import EvalsvcError

STORED = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}
MATRICES = ("gate_up_proj", "down_proj")


def one_block(*codes: int) -> Tensor:
    return torch.tensor([*codes, *([0] * (16 - len(codes)))], dtype=torch.uint8)[None, None]


def exponent(value: int) -> Tensor:
    return torch.tensor([[value]], dtype=torch.uint8)


def test_a_byte_holds_two_codes_the_low_one_first():
    bytes_ = (0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE)
    values = mxfp4_values(one_block(*bytes_), exponent(127))[0, :16].tolist()
    assert values == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


@pytest.mark.parametrize(
    ("scale", "power"), [(0, 2.0**-127), (1, 2.0**-126), (126, 0.5), (127, 1.0), (130, 8.0), (252, 2.0**125)]
)
def test_a_scale_is_a_power_of_two(scale, power):
    assert mxfp4_values(one_block(0xF1), exponent(scale))[0, :2].tolist() == [0.5 * power, -6 * power]


def test_the_largest_scale_is_not_a_number():
    assert bool(mxfp4_values(one_block(0x11), exponent(255)).isnan().all())


def test_blocks_have_scales_of_their_own():
    blocks = torch.full((2, 3, 16), 0x22, dtype=torch.uint8)
    scales = torch.tensor([[127, 128, 129], [126, 125, 124]], dtype=torch.uint8)
    values = mxfp4_values(blocks, scales)
    assert values.shape == (2, 96) and values.dtype == torch.bfloat16
    assert values[:, ::32].tolist() == [[1, 2, 4], [0.5, 0.25, 0.125]]
    assert torch.equal(values.view(2, 3, 32), values[:, ::32, None].expand(2, 3, 32))
    assert torch.equal(mxfp4_values(blocks, scales.view(torch.float8_e8m0fnu)), values)


def packed(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Random blocks and scales of a stack of shape (experts, in, out), values of about 0.15."""
    generator = torch.Generator().manual_seed(seed)
    experts, inputs, out = shape
    blocks = torch.randint(0, 256, (experts, out, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(121, 125, blocks.shape[:3], generator=generator, dtype=torch.uint8)


def test_every_byte_under_every_finite_scale_is_decoded_as_transformers_does():
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 1, 16).expand(253, 16, 1, 16).contiguous()
    scales = torch.arange(253, dtype=torch.uint8).view(253, 1, 1).expand(253, 16, 1).contiguous()
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    got = mxfp4_values(blocks.flatten(0, 1), scales.flatten(0, 1)).view(253, 16, 32).transpose(1, 2)
    assert bool(expected.isfinite().all()) and torch.equal(got, expected)


@pytest.fixture
def both(rewritten):
    """A tiny gpt_oss in mxfp4, and the same with the experts that transformers decodes, in bf16."""

    def store(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for seed, (name, tensor) in enumerate(sorted(tensors.items())):
            if name.endswith(MATRICES):
                found[f"{name}_blocks"], found[f"{name}_scales"] = packed(tuple(tensor.shape), seed)
            else:
                found[name] = tensor
        return found

    def decode(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        stored = store(tensors)
        for name in [name.removesuffix("_blocks") for name in stored if name.endswith("_blocks")]:
            blocks, scales = stored.pop(f"{name}_blocks"), stored.pop(f"{name}_scales")
            stored[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        return stored

    return rewritten("gpt_oss", store, STORED), rewritten("gpt_oss", decode, folder="plain")


def test_a_model_in_mxfp4_answers_as_transformers_with_what_it_decodes_to(both, ids):
    stored, plain = both
    model = AutoModelForCausalLM.from_pretrained(plain, attn_implementation="eager", dtype=torch.float32).eval()
    prompt = ids(40)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    assert expected.std() > 0.3
    got = Engine.load(stored, "w=fp32,kv=fp32", kv_tokens=256).logits(prompt)
    assert (got - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("plan", ["w=bf16", "w=int4:g32", "w=fp8"])
def test_experts_are_held_as_those_of_the_decoded_files(both, plan):
    stored, plain = (WeightSet(ModelDirectory(path), parse_plan(plan).prefill.weights, {}).matrices() for path in both)
    assert set(stored) == set(plain) and sum(".experts." in name for name in stored) == 2 * 8 * 2
    for name, matrix in stored.items():
        for mine, theirs in zip(matrix.packed_tensors(), plain[name].packed_tensors(), strict=True):
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), name


EXPERTS = "model.layers.1.mlp.experts.down_proj"


def lost_codes(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{EXPERTS}_blocks"]


def lost_scales(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{EXPERTS}_scales"]


def too_few(tensors: dict[str, Tensor]) -> None:
    tensors[f"{EXPERTS}_scales"] = tensors[f"{EXPERTS}_scales"][:, :-1].contiguous()


def no_number(tensors: dict[str, Tensor]) -> None:
    tensors[f"{EXPERTS}_scales"][3, 5, 1] = 255


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lost_codes, f"tensor {EXPERTS}_scales has no codes beside it"),
        (lost_scales, f"tensor {EXPERTS}_blocks of type U8 has no _scales beside it"),
        (too_few, f"{EXPERTS}_blocks of shape (8, 64, 3, 16) and {EXPERTS}_scales of shape (8, 63, 3) are no experts"),
        (no_number, f"tensor {EXPERTS} holds NaN or infinity"),
    ],
)
def test_what_does_not_belong_together_is_refused(both, edit, says):
    file = both[0] / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(EvalsvcError) as error:
        Engine.load(both[0], "w=bf16", kv_tokens=64).arm()
    assert says in str(error.value)
