"""Parameters from configurations: against transformers' own models without memory, and against published totals."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from evalsvc.capacity.model import DENSE, KNOWN, model_of, read_model, shipped
from evalsvc.errors import CapabilityError, ConfigError


def tiny_configs():
    """The engine's tiny models, by name."""
    path = Path(__file__).parents[2] / "engine" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: module.config_of(name) for name in module.CONFIGS}


TINY = {name: config for name, config in tiny_configs().items() if config.model_type in KNOWN}
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
ROUTED = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
LATENT = {
    **{k: v for k, v in SMALL.items() if k != "head_dim"},
    **ROUTED,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}
MIXED = {
    "mixtral": ("mixtral", {**SMALL, "num_local_experts": 4}),
    "qwen2_moe": ("qwen2_moe", {**SMALL, **ROUTED, "num_experts": 4, "shared_expert_intermediate_size": 40}),
    "qwen2_moe_step": ("qwen2_moe", {**SMALL, **ROUTED, "num_experts": 4, "decoder_sparse_step": 2}),
    "qwen3_moe": ("qwen3_moe", {**SMALL, **ROUTED, "num_experts": 4, "mlp_only_layers": [1]}),
    "glm4_moe": ("glm4_moe", {**SMALL, **ROUTED, "n_routed_experts": 4, "use_qk_norm": True, "attention_bias": True}),
    "gpt_oss": ("gpt_oss", {**SMALL, "num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    "minimax_m2": ("minimax_m2", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": ("deepseek_v3", LATENT),
    "deepseek_v3_direct": ("deepseek_v3", {**LATENT, "q_lora_rank": None}),
    "glm_moe_dsa": ("glm_moe_dsa", {**LATENT, "index_n_heads": 2, "index_head_dim": 8}),
}
PUBLISHED = {  # billions, as their makers give them: all, and read by a token
    "deepseek-v3": (671.0, 37.0),
    "glm-5": (744.0, 40.0),
    "gpt-oss-120b": (116.83, 5.13),
    "kimi-k2": (1030.0, 32.0),
    "qwen3-30b-a3b": (30.5, 3.3),
}


def counted(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    corrections = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(tensor.numel() for tensor in (*model.parameters(), *corrections))


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_have_the_parameters_of_the_engines_definition(name):
    assert model_of(TINY[name].to_dict(), name).parameters == counted(TINY[name])


def test_every_dense_type_is_tried():
    assert {config.model_type for config in TINY.values()} - {kind for kind, _ in MIXED.values()} == set(DENSE)


@pytest.mark.parametrize("name", MIXED)
def test_mixtures_and_latent_attention_have_their_parameters(name):
    kind, fields = MIXED[name]
    if kind == "gpt_oss":
        fields = fields | {"num_hidden_layers": 2}
    config = AutoConfig.for_model(kind, **fields)
    assert model_of(config.to_dict(), name).parameters == counted(config)


@pytest.mark.parametrize("name", sorted(set(shipped()) - {"kimi-k2"}))
def test_configurations_that_ship_have_the_parameters_of_their_definition(name):
    config = json.loads((Path(model_of.__code__.co_filename).parent / "models" / f"{name}.json").read_text())
    fields = {key: value for key, value in config.items() if key != "model_type"}
    assert read_model(name).parameters == counted(AutoConfig.for_model(config["model_type"], **fields))


@pytest.mark.parametrize("kind", ["indexed_attention", "deepseek_sparse_attention"])
def test_layers_that_choose_their_keys_are_known_by_either_name(kind):
    """transformers 5.24 writes the first, older ones the second."""
    config = {"model_type": "glm_moe_dsa", **LATENT, "index_n_heads": 2, "index_head_dim": 8}
    named = model_of({**config, "layer_types": [kind] * 3}, "glm")
    assert named.parameters == model_of(config, "glm").parameters and named.layers["choosing"] == (0, 1, 2)


def test_published_totals_are_met():
    assert read_model("llama-3.1-8b").parameters == 8_030_261_248
    assert read_model("llama-3.1-70b").parameters == 70_553_706_496
    for name, (total, active) in PUBLISHED.items():
        model = read_model(name)
        assert model.parameters / 1e9 == pytest.approx(total, rel=0.005), name
        assert model.active / 1e9 == pytest.approx(active, rel=0.13), "with embedding and head, which some leave out"


def test_a_multimodal_file_means_its_language_model(tmp_path):
    text = json.loads((Path(model_of.__code__.co_filename).parent / "models" / "kimi-k2.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    assert read_model(tmp_path).parameters == read_model("kimi-k2").parameters


def test_windows_are_read_by_layer():
    layers = read_model("gpt-oss-120b").kv
    assert [layer.window for layer in layers[:4]] == [128, None, 128, None] and len(layers) == 36


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ('{"model_type": "mamba"}', CapabilityError, "model type 'mamba' are not known; known: arcee"),
        ("{}", ConfigError, "config.json: has no model_type; give a model's config.json"),
        ("[1]", ConfigError, "is no JSON object"),
        ("{", ConfigError, "is no JSON ("),
        (
            '{"model_type": "llama", "hidden_size": 8}',
            ConfigError,
            "'num_attention_heads' is missing",
        ),
        (
            '{"model_type": "llama", "hidden_size": "8", "num_attention_heads": 2, "num_hidden_layers": 1,'
            ' "intermediate_size": 2, "vocab_size": 2}',
            ConfigError,
            "'hidden_size' is '8'; it must be a whole number of at least 1",
        ),
        (
            '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,'
            ' "intermediate_size": 2, "vocab_size": 2, "attention_bias": false, "layer_types": 7}',
            ConfigError,
            "of another kind",
        ),
    ],
)
def test_what_is_no_configuration_is_refused_in_a_sentence(tmp_path, text, error, says):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(error) as caught:
        read_model(path)
    assert says in str(caught.value)


def test_a_file_that_is_not_there_names_those_that_ship():
    with pytest.raises(ConfigError, match="deepseek-v3, glm-5"):
        read_model("nowhere.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("hidden_size", value) for value in (0, -8, 8.5, True, None, [8], "8", float("inf"))),
        *(("num_key_value_heads", value) for value in (-1, 1.0, "2")),
        ("sliding_window", -4096),
    ],
)
def test_counts_that_cannot_be_are_refused_by_name(key, value):
    config = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    config |= {"intermediate_size": 2, "vocab_size": 2}
    assert model_of(config, "c").parameters > 0
    with pytest.raises(ConfigError, match=f"^c: '{key}' is .*; it must be a whole number of at least"):
        model_of({**config, key: value}, "c")


def test_counts_that_a_configuration_leaves_empty_are_none():
    dense = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    dense |= {"intermediate_size": 2, "vocab_size": 2}
    empty = {"num_key_value_heads": None, "head_dim": None, "sliding_window": None, "num_experts": 0}
    assert model_of({**dense, **empty}, "c").parts == model_of(dense, "c").parts


@pytest.mark.parametrize(
    ("name", "change", "error", "says"),
    [
        ("llama-3.1-8b", {"num_key_value_heads": 6}, ConfigError, "(6) does not divide 'num_attention_heads' (32)"),
        ("llama-3.1-8b", {"hidden_size": 16, "head_dim": None}, ConfigError, "hidden_size (16) is less than"),
        ("qwen3-30b-a3b", {"num_experts": 0}, ConfigError, "names no number of experts (n_routed_experts, "),
        ("qwen3-30b-a3b", {"num_experts_per_tok": None}, ConfigError, "'num_experts_per_tok' is None"),
        ("kimi-k2", {"num_experts_per_tok": 385}, ConfigError, "is 385; it must be from 1 to the 384 experts"),
        ("gpt-oss-120b", {"layer_types": ["full_attention"]}, ConfigError, "'layer_types' names 1 of 36 layers"),
        (
            "gpt-oss-120b",
            {"layer_types": ["linear"] * 36},
            CapabilityError,
            "names 'linear'; known: full_",
        ),
        ("glm-5", {"indexer_types": ["full"]}, ConfigError, "'indexer_types' names 1 of 78 layers"),
        ("glm-5", {"mlp_layer_types": ["moe"] * 78}, CapabilityError, "'mlp_layer_types' names 'moe'; known: dense"),
    ],
)
def test_what_no_model_can_be_is_refused_with_the_key(name, change, error, says):
    config = json.loads((Path(model_of.__code__.co_filename).parent / "models" / f"{name}.json").read_text())
    assert model_of(config, "c").parameters > 0
    with pytest.raises(error) as caught:
        model_of({**config, **change}, "c")
    assert str(caught.value).startswith("c: ") and says in str(caught.value)
