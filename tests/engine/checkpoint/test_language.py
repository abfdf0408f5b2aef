"""Kimi's checkpoints against the deepseek_v3 that they are."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evalsvc.engine.checkpoint.open import open_checkpoint
from evalsvc.engine.engine import Engine
from evalsvc.errors import CapabilityError, EngineError


@pytest.fixture
def kimi(tiny, tmp_path):
    """`kimi("kimi_k25")`: the tiny deepseek_v3 as such a checkpoint; `head=False` leaves its head out."""

    def make(model_type: str, head: bool = True, **changes) -> Path:
        path = tmp_path / model_type
        shutil.copytree(tiny("deepseek_v3"), path)
        config = json.loads((path / "config.json").read_text()) | {"model_type": "kimi_k2"} | changes
        tensors = load_file(path / "model.safetensors")
        if not head:
            del tensors["lm_head.weight"]
        if model_type == "kimi_k25":
            config = {"model_type": model_type, "text_config": config, "tie_word_embeddings": True, "vision_config": {}}
            tensors = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
            tensors |= {
                "vision_tower.patch_embed.proj.weight": torch.ones(4, 3),
                "mm_projector.proj.0.bias": torch.ones(4),
            }
        (path / "config.json").write_text(json.dumps(config))
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path

    return make


@pytest.mark.parametrize("model_type", ["kimi_k2", "kimi_k25"])
def test_kimi_answers_as_the_deepseek_v3_that_it_is(model_type, kimi, serve, ids):
    prompt = ids(40, 5)
    expected = serve("deepseek_v3", "w=fp32,kv=fp32").logits(prompt)
    engine = Engine.load(kimi(model_type), "w=fp32,kv=fp32", kv_tokens=256, poison=True)
    assert torch.equal(engine.logits(prompt), expected)
    assert engine.checkpoint.eos_ids() == {1}


def test_a_head_that_the_files_leave_out_is_the_embedding(kimi):
    checkpoint = open_checkpoint(kimi("kimi_k25", head=False))
    assert checkpoint.config["tie_word_embeddings"]
    engine = Engine(checkpoint, {"a": Engine.load(checkpoint.path, "w=bf16").specs["default"]}, kv_tokens=64)
    model = engine.arm().prefill.weights.model
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_a_config_without_its_language_model_is_refused(tmp_path, kimi):
    path = kimi("kimi_k25")
    (path / "config.json").write_text(json.dumps({"model_type": "kimi_k25"}))
    with pytest.raises(EngineError, match=r"config\.json of kimi_k25 has no text_config"):
        open_checkpoint(path)


@pytest.mark.parametrize(("field", "asked"), [("scoring_func", "softmax"), ("topk_method", "greedy")])
def test_experts_chosen_in_another_way_are_refused(field, asked, kimi):
    engine = Engine.load(kimi("kimi_k2", **{field: asked}), "w=bf16", kv_tokens=64)
    with pytest.raises(CapabilityError, match=f"experts chosen by {field}: {asked}"):
        engine.arm()
