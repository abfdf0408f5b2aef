"""A model directory that is not whole: one sentence, with the file and the tensor."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from evalsvc.engine.checkpoint.directory import MANIFEST, ModelDirectory
from evalsvc.engine.engine import Engine
from evalsvc.errors import CapabilityError, EngineError, EvalsvcError

NAME = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def model(tiny, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(tiny("llama"), path)
    return path


def tensors_changed(model, change) -> None:
    tensors = load_file(model / "model.safetensors")
    change(tensors)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


def config_changed(model, **change) -> None:
    config = json.loads((model / "config.json").read_text()) | change
    (model / "config.json").write_text(json.dumps(config))


def refusal(model, kind: type[EvalsvcError] = EngineError) -> str:
    with pytest.raises(kind) as caught:
        Engine.load(model, "w=bf16", kv_tokens=64).arm()
    assert "\n" not in str(caught.value)
    assert str(model) in str(caught.value)
    return str(caught.value)


def test_a_whole_directory_loads_and_its_hashes_are_stable(model):
    assert Engine.load(model, "w=bf16", kv_tokens=64).arm()
    assert ModelDirectory(model).hashes() == ModelDirectory(model).hashes()


def test_a_truncated_file_is_named(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors: cannot be read" in refusal(model)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_tensor_that_is_not_finite_is_named(model, value):
    tensors_changed(model, lambda t: t[NAME].view(-1)[5:6].fill_(value))
    assert f"tensor {NAME} holds NaN or infinity" in refusal(model)


def test_a_missing_tensor_is_named(model):
    tensors_changed(model, lambda t: t.pop(NAME))
    assert f"tensor {NAME} is missing (1 in all)" in refusal(model)


def test_a_missing_head_is_missing_unless_it_is_tied(model):
    tensors_changed(model, lambda t: t.pop("lm_head.weight"))
    assert "tensor lm_head.weight is missing" in refusal(model)
    config_changed(model, tie_word_embeddings=True)
    engine = Engine.load(model, "w=bf16", kv_tokens=64)
    tied = dict(engine.arm().prefill.weights.model.named_parameters(remove_duplicate=False))
    assert tied["lm_head.weight"].data_ptr() == tied["model.embed_tokens.weight"].data_ptr()


def test_a_tensor_of_another_shape_is_named_with_both_shapes(model):
    tensors_changed(model, lambda t: t.update({NAME: t[NAME][:, :32].clone()}))
    message = refusal(model)
    assert f"model.safetensors: tensor {NAME} has shape (64, 32)" in message and "(64, 64)" in message


def test_a_tensor_that_belongs_nowhere_is_named(model):
    tensors_changed(model, lambda t: t.update({"model.layers.0.extra": torch.zeros(1)}))
    assert "unexpected tensor model.layers.0.extra" in refusal(model)


@pytest.fixture
def sharded(model):
    """The model in two files and an index; returns which tensors are in which."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({n: tensors[n] for n in members}, model / file)
    write_index(model, {n: file for file, members in shards.items() for n in members})
    return shards


def write_index(model, placed) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def read_index(model) -> dict[str, str]:
    return json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]


def rewrite(path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_shards_give_what_one_file_gives(tiny, model, sharded):
    def logits(path):
        return Engine.load(path, "w=bf16", kv_tokens=64).logits([5, 6, 7])

    assert torch.equal(logits(model), logits(tiny("llama")))


def test_a_missing_shard_is_named(model, sharded):
    (model / "b.safetensors").unlink()
    assert "b.safetensors is missing" in refusal(model)


def test_a_truncated_shard_is_named(model, sharded):
    path = model / "b.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert "b.safetensors: cannot be read" in refusal(model)


@pytest.mark.parametrize("damage", ["gone", "elsewhere"])
def test_a_tensor_that_is_not_where_the_index_places_it_is_named_with_its_file(model, sharded, damage):
    name = sharded["b.safetensors"][3]
    if damage == "gone":
        rewrite(model / "b.safetensors", lambda tensors: tensors.pop(name))
    else:
        write_index(model, read_index(model) | {name: "a.safetensors"})
    where = "b.safetensors" if damage == "gone" else "a.safetensors"
    assert f"{where}: tensor {name} is not in it" in refusal(model)


def test_a_tensor_in_two_shards_is_named_with_both(model, sharded):
    name = sharded["a.safetensors"][3]
    rewrite(model / "b.safetensors", lambda tensors: tensors.update({name: torch.zeros(3)}))
    assert f"tensor {name} is in a.safetensors and in b.safetensors" in refusal(model)


@pytest.mark.parametrize("place", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", 3, None])
def test_an_index_that_leads_out_of_the_directory_is_refused(model, sharded, place):
    write_index(model, read_index(model) | {NAME: place})
    message = refusal(model)
    assert NAME in message and repr(place) in message


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a.safetensors"]}])
def test_an_index_that_places_nothing_is_refused(model, sharded, index):
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "places no tensors" in refusal(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_served_at_bf16(model, dtype):
    rewrite(model / "model.safetensors", lambda tensors: tensors.update({n: t.to(dtype) for n, t in tensors.items()}))
    held = load_file(model / "model.safetensors")[NAME]
    assert held.dtype == dtype
    layer = Engine.load(model, "w=bf16", kv_tokens=64).arm().prefill.weights.linears[NAME.removesuffix(".weight")]
    assert torch.equal(layer.weight, held.bfloat16())


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.float64, "F64")]
)
def test_another_type_is_refused_by_name(model, dtype, name):
    rewrite(model / "model.safetensors", lambda tensors: tensors.update({NAME: tensors[NAME].to(dtype)}))
    message = refusal(model, CapabilityError)
    assert f"model.safetensors: tensor {NAME} is of type {name}" in message and "F32, F16, BF16" in message


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(model, file):
    (model / file).unlink()
    assert f"{file} is missing" in refusal(model)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "cannot be read"), ("[]", "not a JSON object"), ("\xff", "cannot be read")]
)
def test_a_broken_config_is_one_sentence(model, text, words):
    (model / "config.json").write_bytes(text.encode("latin1"))
    assert f"config.json {'is ' * (words.startswith('not'))}{words}" in refusal(model)


def test_a_config_field_of_the_wrong_type_is_one_sentence(model):
    config_changed(model, hidden_size="64")
    assert "hidden_size" in refusal(model)


@pytest.mark.parametrize("model_type", ["foo", "mamba", None])
def test_an_architecture_that_is_not_served_is_refused_by_name(model, model_type):
    config_changed(model, model_type=model_type)
    assert str(model_type) in refusal(model, CapabilityError)


def test_a_checkpoint_that_is_quantized_already_is_refused(model):
    config_changed(model, quantization_config={"quant_method": "hqq"})
    assert "already quantized" in refusal(model, CapabilityError)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(EngineError, match="no such directory"):
        ModelDirectory(tmp_path / "nowhere")


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("damage", ["altered", "deleted"])
def test_a_converted_directory_is_held_to_its_manifest(model, file, damage):
    ModelDirectory(model).write_manifest({"file": "x.gguf", "sha256": "0"})
    assert ModelDirectory(model).hashes()
    if damage == "altered":
        (model / file).write_bytes((model / file).read_bytes() + b" ")
    else:
        (model / file).unlink()
    with pytest.raises(EngineError, match=file):
        ModelDirectory(model).hashes()


def test_a_manifest_without_files_is_one_sentence(model):
    (model / MANIFEST).write_text("{}")
    assert MANIFEST in refusal(model)


@pytest.mark.parametrize(("file", "changed"), [("tokenizer.json", "tokenizer"), ("config.json", "checkpoint")])
def test_each_hash_covers_its_files(model, file, changed):
    before = ModelDirectory(model).hashes()
    (model / file).write_bytes((model / file).read_bytes() + b" ")
    after = ModelDirectory(model).hashes()
    assert {key for key in before if before[key] != after[key]} == {changed}


@pytest.mark.parametrize("damage", ["{", "{}", ""])
def test_a_broken_tokenizer_is_one_sentence(model, damage):
    (model / "tokenizer.json").write_text(damage)
    with pytest.raises(EngineError, match="tokenizer cannot be loaded") as caught:
        ModelDirectory(model).tokenizer()
    assert "\n" not in str(caught.value)


def test_ends_of_sequence_are_those_of_config_and_generation_config(model):
    config_changed(model, eos_token_id=[9, 7])
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert ModelDirectory(model).eos_ids() == {7, 8, 9}
    (model / "generation_config.json").unlink()
    assert ModelDirectory(model).eos_ids() == {7, 9}
    config_changed(model, eos_token_id=0)
    assert ModelDirectory(model).eos_ids() == {0}
