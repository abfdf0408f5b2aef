"""transformers' own model class as the definition, built without memory, its attention paged; and what is refused."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from evalsvc.errors import CapabilityError, EngineError

from .attention import ATTENTION_NAME
from .checkpoint.directory import Checkpoint

SERVED_MODEL_TYPES = ("llama", "qwen2", "qwen3")
SERVED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def check_served(config: Any) -> None:
    """Refuses by name what the engine would answer wrongly.

    Raises:
        CapabilityError: A rope type, attention window or stored quantization that is not served.
    """
    model_type = config.model_type
    if getattr(config, "quantization_config", None) is not None:
        raise CapabilityError(
            "the checkpoint is already quantized (quantization_config); give the bf16 or fp32 original"
        )
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise CapabilityError(f"{model_type} with layers {', '.join(sorted(layer_types))} is not served yet")
    rope = getattr(config, "rope_parameters", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type not in SERVED_ROPE_TYPES:
        raise CapabilityError(f"rope type {rope_type!r} is not served yet; served: {', '.join(SERVED_ROPE_TYPES)}")


def _read_config(checkpoint: Checkpoint) -> Any:
    model_type = checkpoint.config.get("model_type")
    if model_type not in SERVED_MODEL_TYPES:
        served = ", ".join(SERVED_MODEL_TYPES)
        raise CapabilityError(f"model {checkpoint.path}: architecture {model_type!r} is not served; served: {served}")
    try:
        config = AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False)
    except Exception as error:  # transformers validates fields with errors of several kinds
        reason = " ".join(str(error).split())
        raise EngineError(f"model {checkpoint.path}: config.json cannot be used ({reason})") from None
    check_served(config)
    return config


def empty_model(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint's model without memory: every tensor is on the meta device.

    Args:
        checkpoint: Whose config.json says what to build.
        dtype: Compute type.

    Raises:
        CapabilityError: The engine would answer wrongly for this model.
        EngineError: config.json cannot be used.
    """
    config = _read_config(checkpoint)
    config._attn_implementation = ATTENTION_NAME
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def fill_buffers(model: PreTrainedModel) -> None:
    """Makes again what no checkpoint holds: rope's frequencies."""
    for name, module in list(model.named_modules()):
        if "rotary_emb" in name.rpartition(".")[2]:
            model.set_submodule(name, type(module)(config=model.config))  # pyright: ignore[reportCallIssue]
