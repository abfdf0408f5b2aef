"""A checkpoint in a format: what is held once, what is shared, what is packed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evalsvc.engine.checkpoint.base import StoredTensor
from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.engine import Engine
from evalsvc.engine.linear import PlanLinear
from evalsvc.engine.precision import parse_plan
from evalsvc.engine.quantize import quantize
from evalsvc.engine.weights import WeightSet
from evalsvc.errors import ConfigError, EngineError

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
FORMATS = ["w=fp32", "w=bf16", "w=fp8", "w=fp8:w8a16", "w=int4:g32:asym", "w=int8", "w=nvfp4", "w=fp8:block128"]


@pytest.fixture
def model(tiny, tmp_path):
    """`model("llama")`: a copy of a tiny model that may be changed."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(tiny(name), tmp_path / name))

    return copy


def weights(path: Path, plan: str, shared: dict | None = None) -> WeightSet:
    return WeightSet(ModelDirectory(path), parse_plan(plan).prefill.weights, {} if shared is None else shared)


def change(path: Path, edit) -> None:
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def configure(path: Path, **changes) -> None:
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | changes))


def parameters(held: WeightSet) -> dict[str, Tensor]:
    return dict(held.model.named_parameters(remove_duplicate=False))


# -- what is held ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", FORMATS)
def test_every_linear_is_the_files_tensor_in_the_format_and_the_rest_is_rounded_once(tiny, plan):
    """llama has biases on q, k, v and o, whose names come before those of their weights."""
    files = load_file(tiny("llama") / "model.safetensors")
    held = weights(tiny("llama"), plan)
    assert len(held.linears) == 2 * 7
    for name, layer in held.linears.items():
        packed = quantize(files[f"{name}.weight"], held.fmt, name)
        expected = [packed] if isinstance(packed, Tensor) else packed.tensors()
        for mine, theirs in zip(layer.matrix.packed_tensors(), expected, strict=True):
            assert mine.dtype == theirs.dtype and torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
        bias = files.get(f"{name}.bias")
        assert (layer.bias is None) == (bias is None)
        if bias is not None:
            assert layer.bias is not None and torch.equal(layer.bias, bias.to(held.dtype))
    for name, parameter in parameters(held).items():
        assert torch.equal(parameter, files[name].to(held.dtype)), name
    assert {name.rpartition(".")[0] for name in files} == {n.rpartition(".")[0] for n in parameters(held)} | set(
        held.linears
    )


@pytest.mark.parametrize("name", ["llama_mha", "qwen2"])
def test_a_tied_head_is_the_embedding_itself(tiny, name):
    held = parameters(weights(tiny(name), "w=bf16"))
    assert held[HEAD].data_ptr() == held[EMBEDDING].data_ptr()


def test_a_tied_head_that_is_in_the_files_too_must_be_the_embedding(model):
    path = model("qwen2")
    change(path, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    held = parameters(weights(path, "w=bf16"))
    assert held[HEAD].data_ptr() == held[EMBEDDING].data_ptr()
    change(path, lambda tensors: tensors[HEAD][3].add_(1.0))
    with pytest.raises(EngineError, match=r"ties lm_head\.weight to the embedding, and another is held; set tie_word"):
        weights(path, "w=bf16")


def test_a_head_of_its_own_is_not_the_embedding(tiny):
    held = parameters(weights(tiny("llama"), "w=bf16"))
    assert held[HEAD].data_ptr() != held[EMBEDDING].data_ptr()


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("plan", ["w=int4:g32:asym:lm_head", "w=fp8:w8a16:lm_head", "w=fp8:lm_head"])
def test_a_head_that_is_asked_is_packed_and_the_embedding_stays(tiny, name, plan):
    """qwen2's is tied: it is packed from the embedding, which itself is still held as it is."""
    files = load_file(tiny(name) / "model.safetensors")
    held = weights(tiny(name), plan)
    assert len(held.linears) == 2 * 7 + 1
    source = files[HEAD] if HEAD in files else files[EMBEDDING].bfloat16()
    packed = quantize(source, held.fmt, "lm_head")
    assert not isinstance(packed, Tensor)
    for mine, theirs in zip(held.linears["lm_head"].matrix.packed_tensors(), packed.tensors(), strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
    left = parameters(held)
    assert HEAD not in left and torch.equal(left[EMBEDDING], files[EMBEDDING].bfloat16())
    assert held.model.get_submodule("lm_head") is held.linears["lm_head"]


@pytest.mark.parametrize("plan", ["w=int4:g32:sym", "w=fp8:w8a16"])
def test_logits_come_from_the_packed_head(tiny, ids, plan):
    """The bits of the same linears under a bf16 head that holds what the packed one decodes to."""
    plain, quantized = (Engine.load(tiny("llama"), p, kv_tokens=64) for p in (plan, f"{plan}:lm_head"))
    before, after = plain.logits(ids(20)), quantized.logits(ids(20))
    head = quantized.arm().prefill.weights.linears["lm_head"].matrix.packed
    assert not isinstance(head, Tensor)
    model = plain.arm().prefill.weights.model
    model.get_submodule("lm_head").weight = torch.nn.Parameter(head.dequantize().bfloat16(), requires_grad=False)
    assert torch.equal(plain.logits(ids(20)), after) and not torch.equal(before, after)


def test_formats_of_one_compute_type_share_embeddings_norms_and_head_and_no_linear(tiny):
    shared: dict = {}
    one, other = weights(tiny("llama"), "w=bf16", shared), weights(tiny("llama"), "w=int4:g32", shared)
    fine = weights(tiny("llama"), "w=fp32", shared)
    mine, theirs, apart = parameters(one), parameters(other), parameters(fine)
    assert set(mine) == set(theirs) == set(apart) and {HEAD, EMBEDDING, "model.norm.weight"} <= set(mine)
    for name in mine:
        assert mine[name].data_ptr() == theirs[name].data_ptr() != apart[name].data_ptr(), name
    pointers = [
        {t.data_ptr() for t in held.linears[n].matrix.packed_tensors()} for held in (one, other) for n in one.linears
    ]
    assert len(set().union(*pointers)) == sum(map(len, pointers))


def test_what_is_shared_is_read_once(tiny, monkeypatch):
    read: list[str] = []
    original = StoredTensor.read

    def note(self, dtype=None):
        read.append(self.name)
        return original(self, dtype)

    monkeypatch.setattr(StoredTensor, "read", note)
    shared: dict = {}
    weights(tiny("llama"), "w=bf16", shared)
    assert sorted(read) == sorted(load_file(tiny("llama") / "model.safetensors"))
    read.clear()
    weights(tiny("llama"), "w=fp8", shared)
    assert EMBEDDING not in read and HEAD not in read and "model.layers.1.mlp.up_proj.weight" in read


def test_weights_stay_when_the_file_changes_under_them(model):
    path = model("llama")
    held = weights(path, "w=fp32")
    kept = {name: layer.weight.clone() for name, layer in held.linears.items()}
    with (path / "model.safetensors").open("r+b") as stream:
        stream.seek(path.joinpath("model.safetensors").stat().st_size // 8)
        stream.write(b"\xff" * 100_000)
    for name, layer in held.linears.items():
        assert torch.equal(layer.weight, kept[name]), name


# -- the head, packed when asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("plan", ["w=int4:g32:asym:lm_head", "w=fp8:block128:lm_head", "w=nvfp4:lm_head"])
def test_an_lm_head_that_is_asked_for_is_packed_and_the_embedding_stays(tiny, name, plan):
    files = load_file(tiny(name) / "model.safetensors")
    held = weights(tiny(name), plan)
    head = held.linears["lm_head"]
    assert isinstance(held.model.lm_head, PlanLinear) and held.model.lm_head is head
    assert len(held.linears) == 2 * 7 + 1
    source = files[HEAD] if name == "llama" else files[EMBEDDING].bfloat16()  # a tied head is the bf16 embedding
    expected = quantize(source, held.fmt, "lm_head")
    assert not isinstance(expected, Tensor)
    for mine, theirs in zip(head.matrix.packed_tensors(), expected.tensors(), strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
    assert torch.equal(parameters(held)[EMBEDDING], files[EMBEDDING].bfloat16())
    assert HEAD not in parameters(held)


def test_a_packed_head_changes_the_logits_and_shares_the_rest(serve, ids):
    plain, packed = (serve("llama", f"w=int4:g32{head}").logits(ids(20)) for head in ("", ":lm_head"))
    assert 0.01 < (plain - packed).abs().max() < plain.abs().max()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_nothing_is_read_of_a_model_whose_tensors_do_not_match(model, monkeypatch):
    path = model("llama")
    change(path, lambda tensors: tensors.pop("model.norm.weight"))
    monkeypatch.setattr(StoredTensor, "read", lambda *_: pytest.fail("read a tensor"))
    with pytest.raises(EngineError, match=r"tensor model\.norm\.weight is missing"):
        weights(path, "w=bf16")


def test_a_missing_bias_is_named(model):
    path = model("llama")
    change(path, lambda tensors: tensors.pop("model.layers.1.self_attn.v_proj.bias"))
    with pytest.raises(EngineError, match=r"tensor model\.layers\.1\.self_attn\.v_proj\.bias is missing \(1 in all\)"):
        weights(path, "w=bf16")


def test_frequencies_that_older_checkpoints_hold_are_left_out(model):
    path = model("llama")
    change(path, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}))
    assert torch.equal(
        parameters(weights(path, "w=bf16"))[EMBEDDING], load_file(path / "model.safetensors")[EMBEDDING].bfloat16()
    )


def test_a_group_that_does_not_divide_names_the_layer(model):
    with pytest.raises(ConfigError, match=r"int4:g64 does not divide the 96 inputs of model\.layers\.0\.mlp\.down"):
        weights(model("llama"), "w=int4:g64")
