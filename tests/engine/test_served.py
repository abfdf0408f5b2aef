"""Who is served and who is refused, by name: transformers takes our attention for every model and is then silent."""

import json

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.llama.modeling_llama import LlamaAttention

from evalsvc.engine.checkpoint.directory import ModelDirectory
from evalsvc.engine.layout import Layout, layout_of
from evalsvc.engine.model import SERVED_MODEL_TYPES, empty_model
from evalsvc.engine.sizes import LatentShape
from evalsvc.errors import CapabilityError, EngineError

SMALL = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
}
OTHER_TYPES = {
    "bart": "no decoder-only language model",
    "bert": "output layer",
    "bloom": "layer 0 has no attention",
    "diffllama": "layer 0 attends more than once",
    "doge": "layer 0 brings a mask of its own",
    "falcon_h1": "recurrent state",
    "gemma4_text": "rope type 'proportional'",
    "gpt2": "c_attn.weight is a matrix of Conv1D",
    "jamba": "recurrent state",
    "llama4_text": "layers of type chunked_attention",
    "minicpm3": "queries, keys and values of 96, 96 and 16 numbers a head",
    "minimax": "layers of type linear_attention",
    "phimoe": "architecture 'phimoe' is not served",
    "qwen3_next": "recurrent state",
    "internlm3": "architecture 'internlm3' is not served",
    "nobody_knows_it": "architecture 'nobody_knows_it' is not served",
}
OPTIONS = {
    "quantized": ("llama", {"quantization_config": {"quant_method": "fp8"}}, "already quantized"),
    "layer type": ("llama", {"layer_types": ["full_attention", "conv"]}, "layers of type conv"),
    "chunks": ("llama", {"attention_chunk_size": 64}, "attention_chunk_size"),
    "not causal": ("llama", {"is_causal": False}, "is_causal"),
    "both ways": ("gemma3_text", {"use_bidirectional_attention": True}, "layer 0 attends to later tokens"),
    "rope": (
        "gemma",
        {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}},
        "rope type 'proportional'",
    ),
    "a window that is never passed": (
        "llama",
        {"sliding_window": 8},
        "layer 0: the configuration asks for a sliding window of 8, its attention gets None",
    ),
    "layers that slide without passing it": (
        "olmo2",
        {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
        "layer 1: the configuration asks for a sliding window of 8, its attention gets None",
    ),
    "no window to slide": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention", "sliding_attention"]},
        "layer 1 is of type sliding_attention, and config.json has no sliding_window",
    ),
    "a soft cap that is never passed": (
        "qwen3",
        {"attn_logit_softcapping": 30.0},
        "layer 0: the configuration asks for a soft cap of 30.0, its attention gets None",
    ),
}


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(model_type, options)`: a directory whose config.json says so; its weights are never read."""

    def write(model_type, options) -> ModelDirectory:
        (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": model_type} | options))
        (tmp_path / "model.safetensors").touch()
        return ModelDirectory(tmp_path)

    return write


@pytest.mark.parametrize("model_type", OTHER_TYPES)
def test_other_architectures_are_refused_for_a_reason(model_type, checkpoint):
    held = checkpoint(model_type, {})
    with pytest.raises(CapabilityError) as refusal:
        empty_model(held, torch.bfloat16)
    assert str(refusal.value).startswith(f"model {held.path}: ")
    assert model_type in str(refusal.value)
    known = model_type in CONFIG_MAPPING  # older transformers do not know the newest
    assert (OTHER_TYPES[model_type] if known else "is not served") in str(refusal.value)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_served_architecture_is_refused_with_what_pages_cannot_serve(option, checkpoint):
    model_type, options, reason = OPTIONS[option]
    assert model_type in SERVED_MODEL_TYPES
    with pytest.raises(CapabilityError) as refusal:
        empty_model(checkpoint(model_type, options), torch.bfloat16)
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    "options",
    [{"hidden_act": "no_such"}, {"num_attention_heads": "four"}, {"rope_parameters": {"rope_type": "linear"}}],
)
def test_a_configuration_that_cannot_be_used_is_no_traceback(options, checkpoint):
    held = checkpoint("llama", options)
    with pytest.raises(EngineError, match=r"config\.json cannot be used") as error:
        empty_model(held, torch.bfloat16)
    assert "\n" not in str(error.value)


def test_every_served_architecture_is_in_the_parity_matrix(architectures):
    assert set(architectures.values()) == set(SERVED_MODEL_TYPES)
    assert list(SERVED_MODEL_TYPES) == sorted(SERVED_MODEL_TYPES)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama", Layout(2, 32, (None, None))),
        ("deepseek_v3", Layout(1, 272, (None, None), LatentShape(2, 256, 16))),
        ("glm_moe_dsa", Layout(1, 272, (None, None, None), LatentShape(3, 256, 16, 32, (0, 2)))),
        ("opt", Layout(4, 16, (None, None))),  # config.json says two heads of keys; this architecture does not read it
        ("stablelm", Layout(2, 16, (None, None))),
        ("mistral", Layout(2, 32, (8, 8))),
        ("gemma3", Layout(2, 32, (8, None))),
        ("qwen2_mixed", Layout(2, 32, (None, 8))),
    ],
)
def test_pages_are_laid_out_by_what_attention_is_given(name, layout, tiny):
    model = empty_model(ModelDirectory(tiny(name)), torch.bfloat16)
    assert layout_of(model) == layout
    assert all(parameter.is_meta for parameter in model.parameters())


def test_layers_of_unequal_keys_are_refused(tiny, monkeypatch):
    """Architectures with wider heads in some layers exist; one page size would not fit them."""
    ours = LlamaAttention.__init__

    def fewer_heads_later(self, config, layer_idx):
        ours(self, AutoConfig.for_model(**(config.to_dict() | {"num_key_value_heads": 2 - layer_idx})), layer_idx)
        self.config = config

    monkeypatch.setattr(LlamaAttention, "__init__", fewer_heads_later)
    with pytest.raises(CapabilityError, match="layer 1 has keys of another shape than layer 0"):
        empty_model(ModelDirectory(tiny("llama")), torch.bfloat16)
