"""Each matrix in the format that its files have."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from evalsvc.engine.engine import Engine
from evalsvc.engine.packed.fp8 import quantize_fp8
from evalsvc.engine.requests import GenerateRequest
from evalsvc.errors import EvalsvcError
from evalsvc.kernels.dispatch import VARIABLE

from . import compressing as ct
from .compressing import KIMI, WIDE, held, store

DOWN = "model.layers.1.mlp.down_proj"


def test_as_stored_experts_are_packed_and_the_rest_is_not(both, ids):
    stored, decoded = both("deepseek_v3", ct.PACKED4, experts_alone=True)
    engine = Engine.load(stored, "w=stored", kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=3)]))
    proof, files = engine.proof(), load_file(stored / "model.safetensors")
    weights, packed = proof["decode"]["weights"], sum(name.endswith("_packed") for name in files)
    assert proof["mismatches"] == [] and str(engine.arm().spec.plan) == "w=stored,kv=bf16"
    assert weights["linears_as_files_say"] == {"int4:g32:sym": packed, "bf16": weights["linears"] - packed}
    assert weights["linears_by_format"] == {"int4:g32:sym": packed, "bf16": weights["linears"] - packed + 1}
    for name, matrix in engine.arm().decode.weights.matrices().items():
        expert = ".experts." in name
        assert matrix.kept == expert and matrix.fmt.kind == ("int4" if expert else "bf16")
    # Products read the library's own values in bf16, so the answers are those of the decompressed model in bf16.
    assert torch.equal(engine.logits(ids(40)), Engine.load(decoded, "w=bf16", kv_tokens=256).logits(ids(40)))


def test_as_stored_a_matrix_that_was_rounded_again_is_a_mismatch(both):
    stored, _ = both("llama", ct.PACKED4)
    engine = Engine.load(stored, "w=bf16 > w=stored", kv_tokens=256)
    matrix = engine.arm().decode.weights.linears[DOWN].matrix
    matrix.kept = False
    assert engine.proof()["mismatches"] == ["decode: 1 matrices are not the checkpoint's own, the plan says stored"]
    matrix.kept, matrix.packed = True, quantize_fp8(matrix.dequantized())
    proof = engine.proof()
    assert any("linears are held as" in said and "'fp8:channel': 1" in said for said in proof["mismatches"])
    assert proof["decode"]["weights"]["code_dtypes"] == {"int32": 13, "float8_e4m3fn": 1}


DYNAMIC = {
    "int8": {"num_bits": 8, "strategy": "token", "dynamic": True},
    "fp8": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
    "fp8 blocks": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": True},
}


def with_inputs(scheme, **inputs):
    return scheme.model_copy(update={"input_activations": ct.QuantizationArgs(**inputs)})


@pytest.mark.parametrize(
    ("scheme", "plan"),
    [
        (ct.INT8, "w=int8:w8a16"),
        (with_inputs(ct.INT8, **DYNAMIC["int8"]), "w=int8"),
        (ct.FP8, "w=fp8:w8a16"),
        (with_inputs(ct.FP8_TENSOR, **DYNAMIC["fp8"]), "w=fp8"),
        (with_inputs(ct.FP8_BLOCKS, **DYNAMIC["fp8 blocks"]), "w=fp8:block128"),
        (ct.NVFP4, "w=nvfp4:w4a16"),
    ],
)
def test_as_stored_is_the_format_that_a_plan_would_name(rewritten, ids, scheme, plan):
    path = rewritten("llama", store(scheme), ct.config_of(scheme, ignore=("lm_head",)), **WIDE)
    answers = []
    for asked in ("w=stored", plan):
        engine = Engine.load(path, asked, kv_tokens=256)
        list(engine.generate([GenerateRequest(prompt="hello", max_tokens=2)]))
        assert engine.proof()["mismatches"] == []
        answers.append(engine.logits(ids(20)))
    assert torch.equal(*answers)


@pytest.mark.parametrize("mixed", [False, True])
def test_as_stored_experts_run_from_their_codes_where_all_are_alike(rewritten, ids, monkeypatch, mixed):
    """As Triton: in one product a matrix, or expert by expert where the files hold one otherwise than the others."""
    odd = "model.layers.1.mlp.experts.2.up_proj"

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = store(ct.PACKED4, True)(tensors)
        if mixed:
            found = {name: t for name, t in found.items() if not name.startswith(odd)}
            found[f"{odd}.weight"] = tensors[f"{odd}.weight"]
        return found

    ignore = (*KIMI, odd) if mixed else KIMI
    path = rewritten("deepseek_v3", edit, ct.config_of(ct.PACKED4, ignore=ignore))
    wanted = Engine.load(path, "w=stored", kv_tokens=64).logits(ids(2))
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    engine = Engine.load(path, "w=stored", kv_tokens=64)
    got = engine.logits(ids(2))
    proof, experts = engine.proof(), engine.arm().decode.weights.experts["model.layers.1.mlp.experts"]
    assert proof["mismatches"] == [] and experts.asks == mixed
    ran = {name for name in proof["prefill"]["kernels"] if name.startswith("linear.")}
    assert ran == {"linear.bf16.torch", "linear.int4_w4a16.triton"}
    assert (got - wanted).abs().max() < 0.05 * wanted.std()


def test_as_stored_a_head_is_packed_where_the_files_have_it_so(rewritten):
    head = "lm_head.weight"

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        local = ct.stored_as(ct.FP8, tuple(tensors[head].shape))
        return store(ct.FP8)(tensors) | {f"lm_head.{leaf}": tensor for leaf, tensor in local.items()}

    path = rewritten("llama", edit, ct.config_of(ct.FP8), **WIDE)
    engine = Engine.load(path, "w=stored", kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=2)]))
    proof = engine.proof()
    assert proof["mismatches"] == [] and proof["decode"]["weights"]["linears_by_format"] == {"fp8:channel": 15}
    bf16 = Engine.load(path, "w=fp8:w8a16", kv_tokens=256).arm().decode.weights
    assert torch.equal(
        bf16.model.get_output_embeddings().weight,
        engine.arm().decode.weights.linears["lm_head"].matrix.dequantized().bfloat16(),
    )


def test_as_stored_plain_numbers_are_bf16(tiny):
    engine = Engine.load(tiny("llama"), "w=stored > w=bf16", kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=2)]))
    assert engine.proof()["mismatches"] == []
    assert engine.proof()["prefill"]["weights"]["linears_as_files_say"] == {"bf16": 14}


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        (ct.MXFP4, "is stored as mxfp4-pack-quantized (4 bits, one scale a group of 32) with activations unquantized"),
        (ct.CHANNEL4, "is stored as pack-quantized (4 bits, one scale a channel) with activations unquantized, which"),
        (with_inputs(ct.PACKED4, **DYNAMIC["int8"]), "with activations int of 8 bits, token, as they come, which is"),
        (
            with_inputs(ct.FP8, num_bits=8, type="float", strategy="tensor", dynamic=False),
            "with activations float of 8 bits, tensor, by a stored scale, which is no plan's format; name a weights",
        ),
        (
            with_inputs(ct.NVFP4, **ct.FP4, dynamic="local"),
            "with activations float of 4 bits, group16, local, which is no plan's format",
        ),
    ],
)
def test_as_stored_what_no_plan_can_hold_is_refused(rewritten, scheme, says):
    wide = {"hidden_size": 64, "intermediate_size": 96}
    path = rewritten("llama", store(scheme), ct.config_of(scheme, ignore=("lm_head",)), **wide)
    with pytest.raises(EvalsvcError) as error:
        held(path, "w=stored")
    assert says in str(error.value) and "name a weights format in place of `stored`" in str(error.value)


def test_as_stored_scales_that_would_be_narrowed_are_refused(rewritten):
    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = store(ct.PACKED4)(tensors)
        return {name: t.float() if name.endswith("_scale") else t for name, t in found.items()}

    path = rewritten("llama", edit, ct.config_of(ct.PACKED4, ignore=("lm_head",)), **WIDE)
    with pytest.raises(EvalsvcError, match=r"proj\.weight is int4:g32:sym with other scales than that format has"):
        held(path, "w=stored")
