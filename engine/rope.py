"""Rotary position embeddings: what no checkpoint holds is made again, and what depends on the batch is frozen.

transformers chooses the frequencies of the types `dynamic` and `longrope` from the largest position of the batch. In a
packed batch with keys kept from earlier steps that would make an answer depend on its neighbours, and mix keys of
unequal frequencies. Here they are chosen once, for the longest sequence that is served: every request is computed as
transformers computes a sequence of that length, short ones too. Up to the length of pretraining these are the original
frequencies.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsvc.errors import CapabilityError, EngineError

SERVED_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Rope's parameters, one set for all layers or one for each layer type that rotates."""
    held = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in held.values() if isinstance(value, dict)]
    return nested or ([held] if "rope_type" in held else [])


def check_rope(config: Any) -> None:
    """Refuses rope types that are not tested against transformers.

    Raises:
        CapabilityError: Such a type, by name.
    """
    for parameters in rope_parameters(config):
        if parameters["rope_type"] not in SERVED_ROPE_TYPES:
            served = ", ".join(SERVED_ROPE_TYPES)
            raise CapabilityError(f"rope type {parameters['rope_type']!r} is not served; served: {served}")


def context_length(config: Any) -> int | None:
    """Tokens of the longest sequence that the model is made for; None when the configuration does not say.

    `linear` and `dynamic` stretch `max_position_embeddings` by their factor; `yarn` stretches its original length.
    """
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        return None
    for parameters in rope_parameters(config):
        base = {
            "linear": longest,
            "dynamic": longest,
            "yarn": parameters.get("original_max_position_embeddings", 0),
        }.get(parameters["rope_type"], 0)
        longest = max(longest, int(base * (parameters.get("factor") or 1.0)))
    return longest


def hold_still(model: PreTrainedModel) -> None:
    """From here on no forward chooses frequencies."""
    for _, rotary in _rotaries(model):
        if isinstance(rotary.rope_type, dict):
            rotary.rope_type = {layer_type: _still(kind) for layer_type, kind in rotary.rope_type.items()}
        else:
            rotary.rope_type = _still(rotary.rope_type)


def fill_buffers(model: PreTrainedModel, max_length: int | None = None) -> None:
    """Makes again what no checkpoint holds: rope's frequencies, frozen, and the scale of embeddings.

    Args:
        model: Its buffers that no checkpoint holds may be on the meta device.
        max_length: Tokens of the longest sequence that will be served; None: all the model is made for.

    Raises:
        EngineError: A buffer that nobody knows how to make, by name.
        CapabilityError: Frequencies that depend on the batch even so.
    """
    for name, module in list(model.named_modules()):
        missing = [leaf for leaf, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        if not missing:
            continue
        if hasattr(module, "rope_type"):
            model.set_submodule(name, type(module)(config=module.config))  # pyright: ignore[reportCallIssue]
        elif missing == ["embed_scale"] and hasattr(module, "scalar_embed_scale"):
            here = torch.get_default_device()
            module.embed_scale = torch.full_like(module.embed_scale, module.scalar_embed_scale, device=here)  # pyright: ignore[reportArgumentType]
        else:
            raise EngineError(f"buffer {name}.{missing[0]} is in no checkpoint and cannot be made")
    longest = max_length or context_length(model.config)
    if longest is not None:
        _freeze(model, longest)


def _freeze(model: PreTrainedModel, max_length: int) -> None:
    last = torch.tensor([[max_length - 1]])
    for _, rotary in _rotaries(model):
        for layer_type in _layer_types(rotary):
            _rotate(rotary, last, layer_type)
    hold_still(model)
    first = torch.arange(8)[None]
    for name, rotary in _rotaries(model):
        for layer_type in _layer_types(rotary):
            alone = _rotate(rotary, first, layer_type)
            beside = _rotate(rotary, torch.cat([first, last], dim=1), layer_type)
            for a, b in zip(alone, beside, strict=True):
                if not torch.allclose(a, b[:, : a.shape[1]], rtol=0, atol=1e-5):
                    raise CapabilityError(f"{name} chooses frequencies by the batch in a way that is not served")


def _rotaries(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if hasattr(module, "rope_type"):
            yield name, module


def _layer_types(rotary: Any) -> list[str | None]:
    return list(rotary.rope_type) if isinstance(rotary.rope_type, dict) else [None]


def _rotate(rotary: nn.Module, positions: Tensor, layer_type: str | None) -> tuple[Tensor, ...]:
    extra = {} if layer_type is None else {"layer_type": layer_type}
    return rotary(torch.empty(1), positions, **extra)


def _still(kind: str) -> str:
    return "default" if "dynamic" in kind or kind == "longrope" else kind
