"""compressed-tensors' files: the library's own decompression, kept codes, and whole models."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.engine import Engine
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.requests import GenerateRequest
from evalsvc.errors import EvalsvcError

from . import compressing as ct
from .compressing import KIMI, KINDS, held, store

SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)
KEPT = {
    "w=int4:g32": ct.PACKED4,
    "w=int4:g32:asym": ct.ZEROS4,
    "w=int8": ct.INT8,
    "w=int8:w8a16": ct.PACKED8,
    "w=fp8": ct.FP8,
    "w=fp8:block128": ct.FP8_BLOCKS,
    "w=nvfp4": ct.NVFP4,
}


def one_matrix(path, scheme, local: dict[str, Tensor], **fields) -> ModelDirectory:
    """A directory of one matrix, `layer.weight`."""
    save_file({f"layer.{leaf}": tensor for leaf, tensor in local.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(ct.config_of(scheme, **fields)))
    return ModelDirectory(path)


SHAPES = {"int4 channel": (37, 45), "packed int8 zeros": (37, 45), "int4 zeros": (37, 96), "fp8 blocks": (300, 160)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ct.SCHEMES)
def test_a_matrix_is_what_the_library_decompresses_it_to(tmp_path, name, dtype):
    scheme, shape = ct.SCHEMES[name], SHAPES.get(name, (40, 96))
    local = ct.stored_as(scheme, shape, 3, dtype)
    expected = ct.decompressed(scheme, local)
    (found,) = one_matrix(tmp_path, scheme, local).tensors()
    assert (found.name, found.shape, found.dtype) == ("layer.weight", shape, expected.dtype)
    read = found.read()
    assert read.dtype == expected.dtype and torch.equal(read, expected) and expected.float().std() > 0.01
    pieces = [found.rows(slice(start, start + 7)) for start in range(0, shape[0], 7)]
    assert torch.equal(torch.cat(pieces), expected)


@pytest.mark.parametrize(
    ("name", "plan"),
    [*(("llama", plan) for plan in KEPT), ("qwen3_moe", "w=int4:g32"), ("deepseek_v3", "w=fp8:block128")],
)
def test_the_format_of_the_files_is_kept_code_by_code(both, name, plan):
    stored, decoded = both(name, KEPT[plan])
    files, values = load_file(stored / "model.safetensors"), load_file(decoded / "model.safetensors")
    seen = 0
    for module, matrix in held(stored, plan).matrices().items():
        codes, scale, *rest = matrix.packed_tensors()
        source = files.get(f"{module}.weight_packed", files.get(f"{module}.weight"))
        if plan == "w=int8:w8a16":
            source = (source.view(torch.uint8) ^ 0x80).view(torch.int8)[:, : matrix.shape[1]]
        assert matrix.kept and torch.equal(codes.view(torch.uint8), source.view(torch.uint8))
        assert torch.equal(scale.float(), files[f"{module}.weight_scale"].float())
        other = files.get(f"{module}.weight_global_scale")
        if plan == "w=int4:g32:asym":
            packed = files[f"{module}.weight_zero_point"]
            other = ((packed[:, None] >> SHIFTS[:, None]) & 0xF).flatten(0, 1)[: matrix.shape[0]].to(torch.int16)
        assert len(rest) == (other is not None) and all(torch.equal(one, other) for one in rest)
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in matrix.packed_tensors())
        exact, rounded = matrix.dequantized(), values[f"{module}.weight"].float()
        assert (exact - rounded).abs().max() <= 2**-8 * rounded.abs().max()
        seen += 1
    assert seen == sum(key.endswith(".weight_scale") for key in files)


@pytest.mark.parametrize(("scheme", "plan"), [(ct.FP8_TENSOR, "w=fp8"), (ct.INT8_TENSOR, "w=int8")])
def test_one_scale_of_a_tensor_is_held_for_each_channel(both, scheme, plan):
    stored, _ = both("llama", scheme)
    files = load_file(stored / "model.safetensors")
    for module, matrix in held(stored, plan).matrices().items():
        codes, scale = matrix.packed_tensors()
        assert matrix.kept and torch.equal(codes.view(torch.uint8), files[f"{module}.weight"].view(torch.uint8))
        assert torch.equal(scale, files[f"{module}.weight_scale"].float().expand(len(codes), 1))


@pytest.mark.parametrize("plan", ["w=bf16", "w=int4:g32"])
def test_another_format_is_packed_from_the_decompressed_values(both, plan):
    stored, decoded = (held(path, plan).matrices() for path in both("llama", ct.ZEROS4))
    for name, matrix in stored.items():
        assert not matrix.kept
        for mine, other in zip(matrix.packed_tensors(), decoded[name].packed_tensors(), strict=True):
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8)), name


FORMS = [parse_plan(plan).prefill.weights.stored for plan in (*KEPT, "w=bf16", "w=int4:g64", "w=int4:g32:asym")]


@pytest.mark.parametrize("name", ct.SCHEMES)
def test_no_format_but_the_files_own_is_kept(tmp_path, name):
    scheme = ct.SCHEMES[name]
    own = {
        "int4:g32": "int4:g32:sym",
        "int4 zeros": "int4:g32:asym",
        "packed int8": "int8:channel",
        "packed int8 tensor": "int8:channel",
    }
    own |= {"int8": "int8:channel", "int8 tensor": "int8:channel", "fp8": "fp8:channel", "fp8 tensor": "fp8:channel"}
    own |= {"fp8 blocks": "fp8:block128", "nvfp4": "nvfp4"}
    (found,) = one_matrix(tmp_path, scheme, ct.stored_as(scheme, (40, 96))).tensors()
    for form in FORMS:
        packed = found.packed(form)
        assert (packed is not None) == (form == own.get(name)), form
        assert packed is None or (packed.stored == form and packed.shape == (40, 96))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_scales_are_not_narrowed_to_be_kept(tmp_path, dtype):
    (found,) = one_matrix(tmp_path, ct.PACKED4, ct.stored_as(ct.PACKED4, (40, 96), 3, dtype)).tensors()
    packed = found.packed("int4:g32:sym")
    assert (packed is None) == (dtype == torch.float32) and found.read().dtype == dtype
    if packed is not None:
        assert packed.tensors()[1].dtype == dtype
        assert torch.equal(packed.dequantize().half(), found.read())


@pytest.mark.parametrize("name", ["int4:g32", "int4 zeros", "int8 groups"])
def test_inputs_in_another_order_have_the_scales_of_their_groups(tmp_path, name):
    """Written by loops: `weight_g_idx` names the group of each input; older files alone have it."""
    held = ct.SCHEMES[name]
    local = ct.stored_as(held, (40, 96), 3)
    group = torch.arange(96) // 32
    group = group[torch.randperm(96, generator=torch.Generator().manual_seed(5))]
    plain, shuffled = ct.decompressed(held, local), torch.empty(40, 96, dtype=torch.bfloat16)
    codes = (plain.unflatten(1, (3, 32)).float() / local["weight_scale"][..., None].float()).round().flatten(1)
    zeros = torch.zeros(40, 3)
    if "weight_zero_point" in local:
        packed = local["weight_zero_point"]
        zeros = ((packed[:, None] >> SHIFTS[:, None]) & 0xF).flatten(0, 1)[:40].float() - 8
    for k in range(96):
        code = codes[:, k] + zeros[:, k // 32]  # as stored, whatever the zero point
        shuffled[:, k] = (code - zeros[:, group[k]]).bfloat16() * local["weight_scale"][:, group[k]]
    config = ct.config_of(held)
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    for order, expected in ((group, shuffled), (torch.full((96,), -1), plain)):
        files = local | {"weight_g_idx": order.to(torch.int32)}
        (found,) = one_matrix(tmp_path, held, files, **config["quantization_config"]).tensors()
        assert torch.equal(found.read(), expected) and found.packed("int4:g32:sym") is None
        assert torch.equal(found.rows(slice(9, 23)), expected[9:23])
        with pytest.raises(EvalsvcError, match="inputs in another order"):
            found.own_format()
    assert not torch.equal(shuffled, plain)


@pytest.mark.parametrize(
    ("name", "scheme"), [("llama", "int4:g32"), ("llama", "nvfp4"), ("llama", "mxfp4"), ("deepseek_v3", "int4:g32")]
)
def test_a_model_answers_as_transformers_with_what_the_library_decompresses(both, ids, name, scheme):
    stored, decoded = both(name, ct.SCHEMES[scheme], experts_alone=name == "deepseek_v3")
    model = AutoModelForCausalLM.from_pretrained(decoded, attn_implementation="eager", dtype=torch.float32).eval()
    prompt = ids(40)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    assert expected.std() > 0.3
    got = Engine.load(stored, "w=fp32,kv=fp32", kv_tokens=256).logits(prompt)
    assert (got - expected).abs().max() <= 1e-4


def test_experts_stored_as_kimi_k2_stores_them_are_kept_and_counted(both):
    stored, _ = both("deepseek_v3", ct.PACKED4, experts_alone=True)
    engine = Engine.load(stored, "w=int4:g32", kv_tokens=256)
    list(engine.generate([GenerateRequest(prompt="hello", max_tokens=3)]))
    proof, files = engine.proof(), load_file(stored / "model.safetensors")
    assert proof["decode"]["weights"]["linears_kept_as_stored"] == sum(name.endswith("_packed") for name in files)
    assert proof["mismatches"] == []
    matrix = engine.arm().decode.weights.matrices()["model.layers.1.mlp.experts.5.up_proj"]
    assert matrix.kept and torch.equal(
        matrix.packed_tensors()[0], files["model.layers.1.mlp.experts.5.up_proj.weight_packed"]
    )


def test_the_language_model_of_a_checkpoint_that_holds_more_is_kept_too(rewritten):
    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {f"language_model.{n}": t for n, t in store(ct.PACKED4, True)(tensors).items()}
        return found | {"vision_tower.patch_embed.weight": torch.zeros(2, 3)}

    path = rewritten("deepseek_v3", edit, **KINDS["deepseek_v3"])
    text = json.loads((path / "config.json").read_text()) | ct.config_of(ct.PACKED4, ignore=KIMI)
    (path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    matrices = held(path, "w=int4:g32").matrices()
    assert all(matrix.kept == (".experts." in name) for name, matrix in matrices.items())


def test_scales_of_inputs_are_left_and_types_of_shapes_do_not_matter(tmp_path):
    local = ct.stored_as(ct.PACKED4, (40, 96))
    more = {"input_scale": torch.ones(1), "input_global_scale": torch.ones(1)}
    local["weight_shape"] = local["weight_shape"].to(torch.int32)
    names = [tensor.name for tensor in one_matrix(tmp_path, ct.PACKED4, local | more).tensors()]
    assert names == ["layer.weight"]


def test_a_scale_without_dimensions_is_one_of_a_tensor(tmp_path):
    local = ct.stored_as(ct.FP8_TENSOR, (40, 96))
    (found,) = one_matrix(tmp_path, ct.FP8_TENSOR, local | {"weight_scale": local["weight_scale"][0].clone()}).tensors()
    assert torch.equal(found.read(), ct.decompressed(ct.FP8_TENSOR, local))


def test_zero_points_that_are_none_do_no_harm(tmp_path):
    local = ct.stored_as(ct.INT8, (40, 96)) | {"weight_zero_point": torch.zeros(40, 1, dtype=torch.int8)}
    (found,) = one_matrix(tmp_path, ct.INT8, local).tensors()
    assert torch.equal(found.read(), ct.decompressed(ct.INT8, local)) and found.packed("int8:channel") is not None


# -- what is refused ---------------------------------------------------------------------------------------------------


def without(*leaves: str):
    return lambda local: {leaf: tensor for leaf, tensor in local.items() if leaf not in leaves}


def changed(**tensors):
    return lambda local: local | {leaf: edit(local.get(leaf)) for leaf, edit in tensors.items()}


def with_number(value: float):
    def edit(scale: Tensor) -> Tensor:
        scale = scale.clone()
        scale[0, 0] = value
        return scale

    return edit


def test_a_scale_of_mxfp4_that_is_no_number_is_refused(tmp_path):
    local = changed(weight_scale=with_number(255))(ct.stored_as(ct.MXFP4, (40, 96)))
    (found,) = one_matrix(tmp_path, ct.MXFP4, local).tensors()
    with pytest.raises(EvalsvcError, match=r"tensor layer\.weight holds NaN or infinity"):
        found.read()


NO_GROUP4 = "tensor layer.weight_packed is no pack-quantized (4 bits, one scale a group of 32), which config.json says"
REFUSED = {
    "no scale": (ct.PACKED4, without("weight_scale"), "tensor layer.weight_packed has no .weight_scale beside it"),
    "no shape": (ct.PACKED4, without("weight_shape"), "tensor layer.weight_packed has no .weight_shape beside it"),
    "no sides": (
        ct.PACKED4,
        without("weight_scale", "weight_shape"),
        "tensor layer.weight_packed of type I32 has no .weight_scale beside it",
    ),
    "no codes": (ct.PACKED4, without("weight_packed"), "tensor layer.weight_scale has no codes beside it"),
    "no zeros": (ct.ZEROS4, without("weight_zero_point"), "has no .weight_zero_point beside it"),
    "no global": (ct.NVFP4, without("weight_global_scale"), "has no .weight_global_scale beside it"),
    "short scale": (ct.PACKED4, changed(weight_scale=lambda t: t[:, :-1].contiguous()), NO_GROUP4),
    "short codes": (ct.PACKED4, changed(weight_packed=lambda t: t[:, :-1].contiguous()), NO_GROUP4),
    "other shape": (ct.PACKED4, changed(weight_shape=lambda _: torch.tensor([40, 128])), NO_GROUP4),
    "short zeros": (ct.ZEROS4, changed(weight_zero_point=lambda t: t[:-1].contiguous()), "(4 bits, one scale a group"),
    "zeros of other type": (ct.ZEROS8, changed(weight_zero_point=lambda t: t.to(torch.int8)), "is no pack-quantized"),
    "zeros unasked": (ct.INT8, changed(weight_zero_point=lambda _: torch.ones(40, 1, dtype=torch.int8)), "is no int-"),
    "scale of bytes": (ct.FP8, changed(weight_scale=lambda t: t.to(torch.uint8)), "is no float-quantized (8 bits"),
    "codes of other type": (ct.FP8, changed(weight=lambda t: t.view(torch.int8)), "is no float-quantized"),
    "fake quantized": (ct.FP8, changed(weight=lambda t: t.to(torch.bfloat16)), "is no float-quantized"),
    "unpacked": (
        ct.PACKED8,
        lambda local: {"weight": local["weight_packed"], **without("weight_packed")(local)},
        "tensor layer.weight is no pack-quantized",
    ),
    "mxfp4 scale": (ct.MXFP4, changed(weight_scale=lambda t: t.float()), "is no mxfp4-pack-quantized"),
    "mxfp4 codes": (ct.MXFP4, changed(weight_packed=lambda t: t[:, 1:].contiguous()), "is no mxfp4-pack-quantized"),
    "nvfp4 scale": (ct.NVFP4, changed(weight_scale=lambda t: t.float()), "is no nvfp4-pack-quantized"),
    "nvfp4 codes": (ct.NVFP4, changed(weight_packed=lambda t: t[:, 1:].contiguous()), "is no nvfp4-pack-quantized"),
    "other order": (
        ct.PACKED4,
        changed(weight_g_idx=lambda _: torch.arange(96, dtype=torch.int32) % 3),
        "layer.weight_g_idx has inputs in another order, of which config.json says nothing (actorder); fetch the model",
    ),
    "order of fewer": (
        ct.PACKED4,
        changed(weight_g_idx=lambda _: torch.zeros(95, dtype=torch.int32)),
        "tensor layer.weight_g_idx does not name a group for each of 96 inputs",
    ),
    "a group without inputs": (
        ct.PACKED4,
        changed(weight_g_idx=lambda _: torch.zeros(96, dtype=torch.int32)),
        "tensor layer.weight_g_idx puts more than 32 inputs into a group, so that another has too few; fetch the model",
    ),
    "groups that are not there": (
        ct.PACKED4,
        changed(weight_g_idx=lambda _: torch.full((96,), 3, dtype=torch.int32)),
        "tensor layer.weight_g_idx does not name a group for each of 96 inputs",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(tmp_path, name):
    scheme, edit, says = REFUSED[name]
    local = {leaf: tensor.contiguous() for leaf, tensor in edit(ct.stored_as(scheme, (40, 96))).items()}
    with pytest.raises(EvalsvcError) as error:
        list(one_matrix(tmp_path, scheme, local).tensors())
    assert says in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("form", ["kept", "decoded"])
@pytest.mark.parametrize(
    ("scheme", "edit"),
    [
        (ct.PACKED4, changed(weight_scale=with_number(torch.inf))),
        (ct.INT8, changed(weight_scale=with_number(torch.nan))),
        (ct.FP8_BLOCKS, changed(weight_scale=with_number(torch.nan))),
        (ct.FP8, changed(weight=with_number(torch.nan))),
        (ct.NVFP4, changed(weight_global_scale=lambda t: t * 0)),
    ],
)
def test_what_is_not_finite_is_refused(tmp_path, scheme, edit, form):
    (found,) = one_matrix(tmp_path, scheme, edit(ct.stored_as(scheme, (40, 96)))).tensors()
    with pytest.raises(EvalsvcError, match=r"tensor layer\.weight holds NaN or infinity"):
        found.read() if form == "decoded" else found.packed(found_form(scheme))


def found_form(scheme) -> str:
    return next(parse_plan(plan).prefill.weights.stored for plan, held_as in KEPT.items() if held_as is scheme)


def test_a_quantized_matrix_that_is_ignored_is_refused(tmp_path):
    local = ct.stored_as(ct.PACKED4, (40, 96))
    with pytest.raises(EvalsvcError, match=r"layer\.weight_packed is quantized, and the quantization_config of"):
        list(one_matrix(tmp_path, ct.PACKED4, local, ignore=("re:lay",)).tensors())
