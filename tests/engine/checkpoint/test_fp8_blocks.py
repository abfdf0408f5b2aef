"""fp8 in blocks as DeepSeek and others publish: a plain formula, kept codes, and whole models."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.checkpoint.open import open_checkpoint
from evalsvc.engine.engine import Engine
from evalsvc.engine.packed.fp8 import quantize_fp8_block
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest
from evalsvc.engine.weights import WeightSet
from evalsvc.errors import EvalsvcError

STORED = {
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
        "modules_to_not_convert": ["lm_head"],
    }
}
WIDE = {"hidden_size": 160, "intermediate_size": 288}  # blocks that end early on both sides
EXPERTS = {**WIDE, "moe_intermediate_size": 192}
KINDS = {"llama": WIDE, "qwen3_moe": EXPERTS, "deepseek_v3": EXPERTS}
PLAIN = ("norm", "embed_tokens", "lm_head", "mlp.gate.", "bias")
DOWN = "model.layers.1.mlp.down_proj.weight"


def blocks_of(tensor: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Random codes that no rounding of what they decode to gives back, and scales, of a matrix or a stack of them."""
    generator = torch.Generator().manual_seed(seed)
    codes = (torch.randn(tensor.shape, generator=generator) * 60).clamp(-300, 300).to(torch.float8_e4m3fn)
    *stack, out, inputs = tensor.shape
    scale = torch.rand(*stack, -(-out // 128), -(-inputs // 128), generator=generator)
    return codes, (0.5 + scale) / 400


def by_formula(codes: Tensor, scale: Tensor) -> Tensor:
    """Element by element: the code times the scale of the block that it is in."""
    rows, columns = torch.arange(codes.shape[-2]) // 128, torch.arange(codes.shape[-1]) // 128
    return codes.float() * scale.float()[..., rows[:, None], columns[None, :]]


def store(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for seed, (name, tensor) in enumerate(sorted(tensors.items())):
        if any(part in name for part in PLAIN):
            found[name] = tensor
        else:
            found[name], found[f"{name}_scale_inv"] = blocks_of(tensor, seed)
    return found


def decode(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    stored = store(tensors)
    for name in [name.removesuffix("_scale_inv") for name in stored if name.endswith("_scale_inv")]:
        stored[name] = by_formula(stored[name], stored.pop(f"{name}_scale_inv"))
    return stored


@pytest.fixture
def both(rewritten):
    """`both("llama")`: a tiny model in fp8 blocks, and the same decoded by the formula, in fp32."""
    return lambda name: (
        rewritten(name, store, STORED, **KINDS[name]),
        rewritten(name, decode, folder="plain", **KINDS[name]),
    )


def held(path, plan: str) -> WeightSet:
    return WeightSet(ModelDirectory(path), parse_plan(plan).prefill.weights, {})


@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_is_read_as_the_formula_has_it(both, name):
    stored, plain = both(name)
    expected = load_file(plain / "model.safetensors")
    read = {tensor.name: tensor.read() for tensor in ModelDirectory(stored).tensors()}
    assert set(read) == set(expected)
    for key, tensor in read.items():
        assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e8m0fnu])
def test_scales_of_other_types_are_multiplied_in_fp32(both, dtype):
    stored, _ = both("llama")
    file = stored / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{DOWN}_scale_inv"] = tensors[f"{DOWN}_scale_inv"].to(dtype)
    expected = by_formula(tensors[DOWN], tensors[f"{DOWN}_scale_inv"])
    save_file(dict(tensors), file, metadata={"format": "pt"})
    (found,) = [tensor for tensor in ModelDirectory(stored).tensors() if tensor.name == DOWN]
    assert torch.equal(found.read(), expected)


@pytest.mark.parametrize("plan", ["w=fp8:block128", "w=fp8:block128:w8a16"])
@pytest.mark.parametrize("name", KINDS)
def test_the_format_of_the_files_is_kept_code_by_code(both, name, plan):
    stored, _ = both(name)
    files, weights = load_file(stored / "model.safetensors"), held(stored, plan)
    seen = 0
    for module, matrix in weights.matrices().items():
        source = module.replace(".proj", "_proj") + ".weight"
        codes, scale = matrix.packed_tensors()
        assert matrix.kept and torch.equal(codes.view(torch.uint8), files[source].view(torch.uint8))
        assert torch.equal(scale, files[f"{source}_scale_inv"])
        assert not torch.equal(quantize_fp8_block(matrix.dequantized()).scale, scale)  # rounding again would show
        seen += 1
    assert seen == sum(key.endswith("_scale_inv") for key in files)


def test_the_proof_counts_what_was_kept(both):
    stored, _ = both("qwen3_moe")
    engine = Engine.load(stored, "w=fp8:block128 > w=int4:g32", kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=3)]))
    proof = engine.proof()
    prefill, decode = proof["prefill"]["weights"], proof["decode"]["weights"]
    assert prefill["linears_kept_as_stored"] == prefill["linears"] and decode["linears_kept_as_stored"] == 0
    assert proof["mismatches"] == []


@pytest.mark.parametrize("name", KINDS)
def test_a_model_in_fp8_answers_as_transformers_with_what_it_decodes_to(both, name, ids):
    stored, plain = both(name)
    model = AutoModelForCausalLM.from_pretrained(plain, attn_implementation="eager", dtype=torch.float32).eval()
    prompt = ids(40)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    assert expected.std() > 0.3
    got = Engine.load(stored, "w=fp32,kv=fp32", kv_tokens=256).logits(prompt)
    assert (got - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("plan", ["w=bf16", "w=int4:g32", "w=fp8", "w=nvfp4"])
def test_another_format_is_packed_from_the_decoded_values(both, plan):
    stored, plain = (held(path, plan).matrices() for path in both("llama"))
    for name, matrix in stored.items():
        assert not matrix.kept
        for mine, theirs in zip(matrix.packed_tensors(), plain[name].packed_tensors(), strict=True):
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), name


def stacked(width: int):
    """Experts of one layer in one tensor, as newer writers keep them."""

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
        for layer in {name.partition(".mlp.experts.")[0] for name in tensors if ".experts." in name}:
            shapes = {"gate_up_proj": (8, 2 * width, 160), "down_proj": (8, 160, width)}
            for seed, (name, shape) in enumerate(shapes.items()):
                key = f"{layer}.mlp.experts.{name}"
                found[key], found[f"{key}_scale_inv"] = blocks_of(torch.empty(shape), seed)
        return found

    return edit


def test_stacked_experts_are_kept_where_blocks_do_not_cross_matrices(rewritten):
    path = rewritten("qwen3_moe", stacked(256), STORED, **(KINDS["qwen3_moe"] | {"moe_intermediate_size": 256}))
    files, matrices = load_file(path / "model.safetensors"), held(path, "w=fp8:block128").matrices()
    key = "model.layers.1.mlp.experts"
    for expert in (0, 7):
        up = matrices[f"{key}.{expert}.up_proj"]
        codes, scale = up.packed_tensors()
        assert up.kept and torch.equal(
            codes.view(torch.uint8), files[f"{key}.gate_up_proj"][expert, 256:].view(torch.uint8)
        )
        assert torch.equal(scale, files[f"{key}.gate_up_proj_scale_inv"][expert, 2:])
        down = by_formula(files[f"{key}.down_proj"][expert], files[f"{key}.down_proj_scale_inv"][expert])
        assert torch.equal(matrices[f"{key}.{expert}.down_proj"].dequantized(), down)
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in up.packed_tensors())


def test_stacked_experts_that_share_blocks_are_decoded_and_not_kept(rewritten):
    path = rewritten("qwen3_moe", stacked(192), STORED, **KINDS["qwen3_moe"])
    files = load_file(path / "model.safetensors")
    whole = by_formula(*(files[f"model.layers.1.mlp.experts.gate_up_proj{end}"] for end in ("", "_scale_inv")))
    matrices = held(path, "w=fp32").matrices()
    assert torch.equal(matrices["model.layers.1.mlp.experts.5.up_proj"].dequantized(), whole[5, 192:])
    with pytest.raises(EvalsvcError, match=r"gate_up_proj begins at row 192, within a block of 128"):
        held(path, "w=fp8:block128")


def test_the_language_model_of_a_checkpoint_that_holds_more_is_kept_too(rewritten):
    path = rewritten("deepseek_v3", lambda tensors: {f"language_model.{n}": t for n, t in store(tensors).items()})
    text = json.loads((path / "config.json").read_text()) | STORED
    (path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    matrices = WeightSet(open_checkpoint(path), parse_plan("w=fp8:block128").prefill.weights, {}).matrices()
    assert all(matrix.kept for matrix in matrices.values())
    assert sum(".experts." in name for name in matrices) and sum("kv_b_proj" in name for name in matrices)


# -- what is refused ---------------------------------------------------------------------------------------------------


def no_scale(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{DOWN}_scale_inv"]


def no_codes(tensors: dict[str, Tensor]) -> None:
    del tensors[DOWN]


def too_few(tensors: dict[str, Tensor]) -> None:
    tensors[f"{DOWN}_scale_inv"] = tensors[f"{DOWN}_scale_inv"][:, :1].contiguous()


def bytes_for_scales(tensors: dict[str, Tensor]) -> None:
    tensors[f"{DOWN}_scale_inv"] = tensors[f"{DOWN}_scale_inv"].to(torch.uint8)


def infinite(tensors: dict[str, Tensor]) -> None:
    tensors[f"{DOWN}_scale_inv"][0, 1] = torch.inf


def no_number(tensors: dict[str, Tensor]) -> None:
    tensors[DOWN].view(torch.uint8)[7, 9] = 0xFF


@pytest.mark.parametrize("plan", ["w=fp8:block128", "w=bf16"])
@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (no_scale, f"tensor {DOWN} of type F8_E4M3 has no _scale_inv beside it"),
        (no_codes, f"tensor {DOWN}_scale_inv has no codes beside it"),
        (too_few, f"{DOWN} of shape (160, 288) and {DOWN}_scale_inv of shape (2, 1) are no fp8 in blocks of 128"),
        (bytes_for_scales, "are no fp8 in blocks of 128"),
        (infinite, f"tensor {DOWN} holds NaN or infinity"),
        (no_number, f"tensor {DOWN} holds NaN or infinity"),
    ],
)
def test_what_does_not_belong_together_is_refused(both, edit, says, plan):
    stored, _ = both("llama")
    file = stored / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(EvalsvcError) as error:
        held(stored, plan)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"weight_block_size": [64, 64]}, "fp8 with weight_block_size [64, 64]; read are blocks of [128, 128]"),
        ({"weight_block_size": None}, "fp8 with weight_block_size None"),
        ({"activation_scheme": "static"}, "fp8 e4m3 with static activations"),
        ({"fmt": "e5m2"}, "fp8 e5m2 with dynamic activations"),
        ({"quant_method": "bitsandbytes"}, "already quantized in a way that is not read (quant_method 'bitsandbytes')"),
        ({"quant_method": "hqq"}, "quant_method 'hqq'"),
        ({"quant_method": "modelopt"}, "quant_method 'modelopt'"),
        ({"quant_method": None}, "quant_method None"),
    ],
)
def test_other_ways_of_storing_are_refused_by_name(rewritten, asked, says):
    stored = rewritten("llama", store, {"quantization_config": STORED["quantization_config"] | asked}, **WIDE)
    with pytest.raises(EvalsvcError) as error:
        Engine.load(stored, "w=bf16", kv_tokens=64).arm()
    assert says in str(error.value) and str(stored) in str(error.value)


@pytest.mark.parametrize("place", ["compression_config", "text_config"])
def test_what_older_and_multimodal_files_say_of_storing_is_seen_too(rewritten, place):
    asked = {"quant_method": "bitsandbytes"}
    config = {place: asked if place == "compression_config" else {"quantization_config": asked}}
    with pytest.raises(EvalsvcError, match="bitsandbytes"):
        Engine.load(rewritten("llama", lambda _: None, config), "w=bf16", kv_tokens=64).arm()


def test_a_quantization_that_is_no_table_is_refused(rewritten):
    with pytest.raises(EvalsvcError, match="its quantization_config is 'gptq'; read is a table of settings"):
        Engine.load(rewritten("llama", lambda _: None, {"quantization_config": "gptq"}), "w=bf16", kv_tokens=64).arm()
