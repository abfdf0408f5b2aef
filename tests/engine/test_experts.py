"""Experts in each format against transformers' own experts over the same decoded values, and what is held of them."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.engine import Engine
from evalsvc.engine.experts import PlanExperts, matrices_of
from evalsvc.engine.matrix import PlanMatrix
from evalsvc.engine.precision import WeightFormat, parse_plan
from evalsvc.engine.quantize import quantize
from evalsvc.engine.requests import GenerateRequest
from evalsvc.engine.weights import WeightSet
from evalsvc.errors import ConfigError

MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "gpt_oss", "minimax_m2", "deepseek_v3"]
STORED = ["int4:g32", "int4:g32:asym", "fp8:w8a16", "fp8:block128:w8a16", "int8:w8a16", "nvfp4:w4a16"]
COMPUTED = ["fp8", "fp8:block128", "int8", "nvfp4"]  # activations are quantized too
LAYER = "model.layers.1.mlp.experts"  # every tiny mixture has experts there
TOLERANCE = 1e-4


def weights_format(text: str) -> WeightFormat:
    return parse_plan(f"w={text}").prefill.weights


def weights(path, text: str) -> WeightSet:
    return WeightSet(ModelDirectory(path), weights_format(text), {})


@pytest.fixture(scope="module")
def routed(ids):
    """Inputs of experts, the experts of each token, and their weights; one expert gets a single token, one none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 64, generator=generator)
    index = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(40)])
    index[11, 0] = 6
    return x, index, torch.rand(40, 3, generator=generator)


def rounded(matrix: Tensor, fmt: WeightFormat) -> Tensor:
    """What a format keeps of a matrix (out, in), in fp32."""
    packed = quantize(matrix, fmt)
    return packed.float() if isinstance(packed, Tensor) else packed.dequantize()


def round_all(theirs, fmt: WeightFormat) -> None:
    """Rounds the stacked weights of transformers' experts matrix by matrix, and its biases to bf16."""
    parts = matrices_of(theirs)
    for expert in range(len(theirs.down_proj)):
        for name in ("gate_up_proj", "down_proj"):
            held = getattr(theirs, name).data[expert]
            matrix = held.T if theirs.is_transposed else held
            pieces = [matrix] if name in parts else matrix.chunk(2)
            new = torch.cat([rounded(piece.contiguous(), fmt) for piece in pieces])
            held.copy_(new.T if theirs.is_transposed else new)
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            parameter.data = parameter.data.bfloat16().float()


def in_fp32(ours: PlanExperts) -> PlanExperts:
    """The experts with the product of the packed form's exact values, so that nothing but order of sums is left."""
    for matrix in ours.matrices.values():
        matrix.weight = matrix.dequantized().float()
    for name in ("gate_up_proj_bias", "down_proj_bias"):
        bias = getattr(ours, name)
        if bias is not None:
            setattr(ours, name, torch.nn.Parameter(bias.float(), requires_grad=False))
    return ours


@pytest.mark.parametrize("text", STORED)
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_equal_transformers_with_the_same_rounded_weights(tiny, reference, routed, name, text):
    ours = in_fp32(weights(tiny(name), text).experts[LAYER])
    theirs = reference(name).get_submodule(LAYER)
    with torch.no_grad():
        unrounded = theirs(*routed)
        round_all(theirs, weights_format(text))
        expected, got = theirs(*routed), ours(*routed)
    scale = expected.abs().max().clamp_min(1.0)
    assert (got - expected).abs().max() <= TOLERANCE * scale
    assert (unrounded - expected).abs().max() > 10 * TOLERANCE * scale  # rounding shows


@pytest.mark.parametrize("text", COMPUTED)
def test_experts_whose_activations_are_quantized_stay_near_those_whose_are_not(tiny, routed, text):
    x, index, gates = routed
    stored = weights_format(text).storage_only
    path = tiny("qwen3_moe")
    both = [weights(path, t).experts[LAYER](x.bfloat16(), index, gates) for t in (text, str(stored))]
    error = (both[0] - both[1]).float().norm() / both[1].float().norm()
    most = {"fp8": 0.06, "int8": 0.03, "nvfp4": 0.25}[stored.kind]  # of e4m3's, int8's and e2m1's steps, two products
    assert 0.001 < error < most


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "deepseek_v3"])
def test_an_expert_that_is_not_packed_contradicts_the_plan(serve, name):
    engine = serve(name, "w=int4:g32", kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=2)]))
    assert engine.proof()["mismatches"] == []
    experts = engine.arm().prefill.weights.experts[LAYER]
    plain = experts.matrices[5, "down_proj"].dequantized()
    experts.matrices[5, "down_proj"] = PlanMatrix(plain, weights_format("bf16"), "plain")
    found = engine.proof()["mismatches"]
    assert any("linears are held as" in text and "'bf16': 2" in text for text in found)


@pytest.mark.parametrize("text", ["bf16", "int4:g32"])
@pytest.mark.parametrize("name", MIXTURES)
def test_routers_and_corrections_are_the_files_under_every_plan(tiny, name, text):
    files, held = load_file(tiny(name) / "model.safetensors"), weights(tiny(name), text)
    files = {key.replace(".block_sparse_moe.", ".mlp."): tensor for key, tensor in files.items()}
    state = held.model.state_dict()
    fp32 = name in ("glm4_moe", "deepseek_v3")
    gates = [key for key in state if key.endswith(("mlp.gate.weight", "router.weight", "shared_expert_gate.weight"))]
    assert gates and not [key for key in held.matrices() if key.endswith((".gate", ".router", "shared_expert_gate"))]
    for key in gates:
        assert state[key].dtype == (torch.float32 if fp32 else torch.bfloat16)
        assert torch.equal(state[key], files[key].to(state[key].dtype))
    corrections = [key for key in state if key.endswith("e_score_correction_bias")]
    assert bool(corrections) == (name in ("glm4_moe", "minimax_m2", "deepseek_v3"))
    for key in corrections:
        assert state[key].dtype == torch.float32 and torch.equal(state[key], files[key])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int4:g32", r"int4:g32 does not divide the 56 inputs of model\.layers\.1\.mlp\.experts\.0\.down_proj"),
        ("nvfp4", r"blocks of 16, which do not divide the 56 inputs of model\.layers\.1\.mlp\.experts\.0\.down_proj"),
    ],
)
def test_a_group_that_does_not_divide_an_experts_inputs_names_it(tiny, text, says):
    path = tiny("qwen3_moe", moe_intermediate_size=56)
    with pytest.raises(ConfigError, match=says):
        weights(path, text)
    assert weights(path, "int8").experts  # which needs no groups


@pytest.mark.parametrize("text", ["bf16", "int4:g32", "fp8:block128"])
def test_experts_that_files_hold_stacked_are_those_that_they_hold_one_by_one(tiny, tmp_path, text):
    source = tiny("qwen3_moe")
    tensors = load_file(source / "model.safetensors")
    found = {key: tensor for key, tensor in tensors.items() if ".experts." not in key}
    for part, names in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
        each = [torch.cat([tensors[f"{LAYER}.{expert}.{name}.weight"] for name in names]) for expert in range(8)]
        found[f"{LAYER}.{part}"] = torch.stack(each)
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file(found, tmp_path / "model.safetensors", metadata={"format": "pt"})
    one_by_one, stacked = weights(source, text).matrices(), weights(tmp_path, text).matrices()
    assert set(one_by_one) == set(stacked) and sum(".experts." in key for key in stacked) == 3 * 8
    for key, matrix in one_by_one.items():
        for mine, theirs in zip(stacked[key].packed_tensors(), matrix.packed_tensors(), strict=True):
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), key


def test_a_neighbours_expert_changes_no_bit_of_a_token(tiny, routed):
    x, index, gates = (t.bfloat16() if t.is_floating_point() else t for t in routed)
    for text in ("bf16", "int4:g32", "fp8", "nvfp4"):
        experts = weights(tiny("mixtral"), text).experts[LAYER]
        whole = experts(x, index, gates.float())
        for row in (0, 11, 39):
            alone = experts(x[row : row + 1], index[row : row + 1], gates[row : row + 1].float())
            assert torch.equal(alone[0], whole[row]), (text, row)


def test_an_engine_of_a_mixture_is_loaded_expert_by_expert(serve):
    engine: Engine = serve("mixtral", "w=int4:g32", kv_tokens=64)
    experts = engine.arm().prefill.weights.experts[LAYER]
    assert set(experts.matrices) == {(e, part) for e in range(8) for part in ("gate_proj", "up_proj", "down_proj")}
    assert not [name for name, p in engine.arm().prefill.weights.model.named_parameters() if p.ndim > 2]
