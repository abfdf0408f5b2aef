"""What an arm's plan will be refused for, refused before any arm is loaded or any file is hashed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.checkpoint.base import StoredTensor
from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.engine import Engine
from evalsvc.engine.precision import parse_plan
from evalsvc.errors import CapabilityError, ConfigError, EngineError

BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


@pytest.fixture(autouse=True)
def nothing_is_read(monkeypatch):
    monkeypatch.setattr(StoredTensor, "read", lambda *_: pytest.fail("read a tensor"))
    monkeypatch.setattr(ModelDirectory, "hashes", lambda _: pytest.fail("hashed the files"))


def refusal(path: Path, arm: str | ArmSpec, baseline: str = "w=bf16") -> str:
    """What is said of a second arm."""
    with pytest.raises((ConfigError, CapabilityError, EngineError)) as error:
        Engine.load(path, plans={"base": baseline, "two": arm})
    return str(error.value)


@pytest.mark.parametrize("plan", ["w=int4", "w=bf16 > w=int4:g128:asym"])
def test_groups_that_do_not_divide_are_refused_with_those_that_do_for_every_matrix(tiny, plan):
    """64 divides the inner size, and not the hidden one."""
    said = refusal(tiny("llama", hidden_size=96, intermediate_size=64), plan)
    assert said.startswith("arm two: int4:g128 does not divide the 64 inputs of model.layers.0.mlp.down_proj")
    assert said.endswith("groups that do: g32")


@pytest.mark.parametrize(("name", "of"), [("qwen3_moe", "experts.0.down_proj"), ("gpt_oss", "experts.0.down_proj")])
def test_groups_that_do_not_divide_an_experts_inputs_are_refused(tiny, name, of):
    changes = {"moe_intermediate_size": 48} if name == "qwen3_moe" else {"intermediate_size": 48}
    said = refusal(tiny(name, **changes), "w=int4:g32")
    assert "arm two: int4:g32 does not divide the 48 inputs of model.layers." in said and of in said


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_head_is_held_against_its_format_where_the_format_asks_for_it(tiny, name):
    """qwen2's is tied: the embedding has its inputs. Blocks of 16 divide all but a hidden size of 72."""
    narrow = tiny(name, hidden_size=72, head_dim=32)
    assert "nvfp4 has blocks of 16, which do not divide the 72 inputs of" in refusal(narrow, "w=nvfp4")
    path = tiny(name)
    for plan in ("w=int4:g32:lm_head", "w=nvfp4:lm_head"):
        with pytest.raises(pytest.fail.Exception, match="hashed the files"):  # all fits, and the engine is made
            Engine.load(path, plans={"base": "w=bf16", "two": plan})


@pytest.mark.parametrize(
    ("name", "plan", "says"),
    [
        ("llama", "kv=fp8:latent128", "arm two: kv=fp8:latent128 is for latent attention"),
        ("deepseek_v3", "kv=bf16 > kv=fp8", "arm two: kv=fp8:token-head is not for latent attention"),
        ("llama", "w=stored", "is not quantized, so that w=stored is w=bf16: write that"),
    ],
)
def test_formats_that_the_model_does_not_have_are_refused(tiny, name, plan, says):
    said = refusal(tiny(name), plan)
    assert said.startswith("arm two: ") and says in said


def stored_in_blocks(tiny, folder: Path, name: str = "llama") -> Path:
    """A copy whose linears are fp8 in blocks."""
    path = Path(shutil.copytree(tiny(name), folder))
    found = {}
    for key, tensor in load_file(path / "model.safetensors").items():
        if key.endswith("proj.weight"):
            found[key] = tensor.to(torch.float8_e4m3fn)
            found[f"{key}_scale_inv"] = torch.ones([-(-size // 128) for size in tensor.shape])
        else:
            found[key] = tensor
    save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | BLOCKS))
    return path


def test_as_stored_beside_the_format_that_the_files_have_is_refused(tiny, tmp_path):
    path = stored_in_blocks(tiny, tmp_path / "blocks")
    said = refusal(path, "w=stored", baseline="w=fp8:block128")
    assert said.endswith("holds all its matrices in fp8:w8a8:block128:group128, so that w=stored is w="
                         "fp8:w8a8:block128:group128: write that")  # fmt: skip
    for baseline in ("w=bf16", "w=fp8:block128:w8a16"):
        with pytest.raises(pytest.fail.Exception, match="hashed the files"):
            Engine.load(path, plans={"base": baseline, "two": "w=stored"})


def head_in_blocks(path: Path) -> Path:
    """Has the head stored like the linears."""
    found = load_file(path / "model.safetensors")
    head = found["lm_head.weight"]
    found["lm_head.weight_scale_inv"] = torch.ones([-(-size // 128) for size in head.shape])
    found["lm_head.weight"] = head.to(torch.float8_e4m3fn)
    save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_as_stored_is_another_format_only_where_the_head_is_held_alike(tiny, tmp_path):
    """`stored` keeps a quantized head packed, a format by name only with `lm_head`."""
    path = stored_in_blocks(tiny, tmp_path / "blocks")
    quantized = head_in_blocks(Path(shutil.copytree(path, tmp_path / "head")))
    full = "fp8:w8a8:block128:group128:lm_head"
    said = refusal(quantized, "w=stored", baseline="w=fp8:block128:lm_head")
    assert said.endswith(f"holds all its matrices in {full}, so that w=stored is w={full}: write that")
    for of, baseline in ((quantized, "w=fp8:block128"), (path, "w=fp8:block128:lm_head")):
        with pytest.raises(pytest.fail.Exception, match="hashed the files"):
            Engine.load(of, plans={"base": baseline, "two": "w=stored"})


def test_a_head_alone_that_is_quantized_is_as_stored_no_other_format(tiny, tmp_path):
    path = Path(shutil.copytree(tiny("llama"), tmp_path / "model"))
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | BLOCKS))
    with pytest.raises(pytest.fail.Exception, match="hashed the files"):
        Engine.load(head_in_blocks(path), plans={"base": "w=bf16", "two": "w=stored"})


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "tensor model.norm.weight is missing"),
        (lambda tensors: tensors.update(other=torch.ones(2)), "unexpected tensor other"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}),
            "has shape (3,), config.json asks (64,)",
        ),
    ],
)
def test_files_that_do_not_fit_their_configuration_are_refused(tiny, tmp_path, edit, says):
    path = Path(shutil.copytree(tiny("llama"), tmp_path / "model"))
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert says in refusal(path, "w=int8")


@pytest.mark.parametrize(
    ("plan", "file", "text", "says"),
    [
        ("kv=fp8:calibrated", "calibration", '{"prompt": 3}', ":1: expected"),
        ("kv=fp8:given", "scales", '{"k": [1], "v": [1]}', "'k' must hold one number, for each of 2 layers"),
    ],
)
def test_files_of_an_arm_are_read_before_the_first_arm_is_loaded(tiny, tmp_path, plan, file, text, says):
    (tmp_path / "file").write_text(text)
    spec = ArmSpec(parse_plan(plan), **{file: tmp_path / "file"})
    said = refusal(tiny("llama"), spec)
    assert said.startswith("arm two: ") and says in said
