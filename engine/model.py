"""transformers' own model class as the definition, built without memory, its attention paged; and what is refused.

transformers takes a custom attention function for every model class and says nothing where that is wrong: recurrent
layers, windows that live in the mask alone, attention called twice. So a model type is served once it has passed the
parity tests, and whatever its configuration, its structure is checked again at each load.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from evalsvc.errors import CapabilityError, EngineError

from .attention import ATTENTION_NAME
from .checkpoint.base import Checkpoint
from .checkpoint.compressed_config import KEYS as STORED_KEYS
from .checkpoint.language import LANGUAGE_TYPES
from .checkpoint.stored import scheme_of
from .experts import check_experts, is_experts, is_router
from .layout import layout_of
from .mla import LATENT_MODEL_TYPES, check_latent_config, keep_latents
from .precision import LATENT_TILE, PrecisionPlan
from .rope import check_rope, context_length, hold_still
from .sizes import check_heads_format, check_latent_format

SERVED_MODEL_TYPES = (
    "arcee",
    "cohere",
    "cohere2",
    "cwm",
    "deepseek_v3",
    "ernie4_5",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm_moe_dsa",
    "gpt_oss",
    "granite",
    "helium",
    "hunyuan_v1_dense",
    "hyperclovax",
    "jais2",
    "llama",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "vaultgemma",
)
SPARSE_LAYER_TYPES = {"indexed_attention", "deepseek_sparse_attention"}  # the latter in transformers before 5.24
SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"} | SPARSE_LAYER_TYPES


def empty_model(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint's model without memory: every tensor is on the meta device.

    Args:
        checkpoint: Whose config.json says what to build.
        dtype: Compute type.

    Raises:
        CapabilityError: The engine would answer wrongly for this model.
        EngineError: config.json cannot be used.
    """
    with _named(checkpoint):
        model = _build(checkpoint, dtype)
    _check_tested(checkpoint)
    return model


def longest_sequence(checkpoint: Checkpoint) -> int | None:
    """Tokens of the longest sequence that the model is made for; None when its configuration does not say.

    Raises:
        CapabilityError: An architecture that is not served.
        EngineError: config.json cannot be used.
    """
    _check_tested(checkpoint)
    with _named(checkpoint):
        return context_length(read_config(checkpoint))


def check_kv(checkpoint: Checkpoint, plan: PrecisionPlan) -> None:
    """Refuses, before anything is loaded, a KV format that the model's kind of attention does not have.

    Raises:
        CapabilityError: Such a format, by name.
    """
    config = checkpoint.config
    latent = config.get("model_type") in LATENT_MODEL_TYPES
    for stage in (plan.prefill, plan.decode):
        if latent:
            check_latent_format(stage.kv, config.get("kv_lora_rank") or LATENT_TILE)
        else:
            check_heads_format(stage.kv)


def _check_tested(checkpoint: Checkpoint) -> None:
    model_type = checkpoint.config.get("model_type")
    if model_type not in SERVED_MODEL_TYPES:
        names = ", ".join(sorted((*SERVED_MODEL_TYPES, *LANGUAGE_TYPES)))
        raise CapabilityError(f"model {checkpoint.path}: architecture {model_type!r} is not served; served: {names}")


@contextmanager
def _named(checkpoint: Checkpoint) -> Iterator[None]:
    """Says of what goes wrong inside of which model it is told."""
    try:
        yield
    except CapabilityError as error:
        model_type = checkpoint.config.get("model_type")
        raise CapabilityError(f"model {checkpoint.path}: {model_type} is not served like this: {error}") from None
    except Exception as error:  # transformers validates fields with errors of several kinds
        _check_tested(checkpoint)
        reason = " ".join(str(error).split())
        raise EngineError(f"model {checkpoint.path}: config.json cannot be used ({reason})") from None


def read_config(checkpoint: Checkpoint) -> Any:
    """The configuration as transformers reads it, defaults filled in and old names of fields replaced.

    How weights are stored is left out: the checkpoint decodes them.

    Raises:
        CapabilityError: Weights stored in a way that is not read.
    """
    scheme_of(checkpoint.config)
    fields = {key: value for key, value in checkpoint.config.items() if key not in STORED_KEYS}
    return CONFIG_MAPPING[checkpoint.config["model_type"]].from_dict(fields)


def _build(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    config = read_config(checkpoint)
    check_config(config)
    config._attn_implementation = ATTENTION_NAME
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    keep_latents(model)
    check_structure(model)
    hold_still(model)
    layout_of(model)
    return model


def check_config(config: Any) -> None:
    """Refuses by name what a configuration asks and pages cannot serve.

    Raises:
        CapabilityError: An encoder, recurrent state, or a kind of attention or rope.
    """
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CapabilityError("it is no decoder-only language model")
    text = config.get_text_config()
    if getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_is_stateful", False):
        raise CapabilityError("it keeps a recurrent state, which pages of keys and values do not hold")
    unknown = sorted(set(getattr(text, "layer_types", None) or ()) - SERVED_LAYER_TYPES)
    if unknown:
        raise CapabilityError(f"layers of type {', '.join(unknown)}")
    if getattr(text, "attention_chunk_size", None) is not None:
        raise CapabilityError("attention in chunks (attention_chunk_size)")
    if not getattr(text, "is_causal", True):
        raise CapabilityError("attention that is not causal (is_causal: false)")
    check_rope(text)
    check_latent_config(text)


def check_structure(model: PreTrainedModel) -> None:
    """Refuses weights that no format of a plan would reach.

    Raises:
        CapabilityError: Experts of another form, another matrix outside nn.Linear and nn.Embedding, or a head by
            another name.
    """
    for name, module in model.named_modules():
        if is_experts(module):
            check_experts(name, module)
    for name, parameter in model.named_parameters():
        path = name.rpartition(".")[0]
        owner = model.get_submodule(path)
        kind = type(owner).__name__
        if is_experts(owner) or is_router(path, owner):
            continue
        if "Expert" in kind:
            raise CapabilityError(f"{name} belongs to a mixture of experts of another form")
        if parameter.ndim > 1 and "Norm" not in kind and not isinstance(owner, nn.Linear | nn.Embedding):
            raise CapabilityError(f"{name} is a matrix of {kind}, not of a linear layer")
    if model.get_output_embeddings() is not getattr(model, "lm_head", None):
        raise CapabilityError("its output layer is not called lm_head")
