"""A checkpoint's tensors held against its model's definition: from names and shapes, no matrix is read."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from evalsvc.errors import EngineError

from .checkpoint.base import Checkpoint, StoredTensor
from .experts import is_experts, is_router
from .placing import Placed, expert_shapes, place

HEAD = "lm_head"
PLAIN_KINDS = ("fp32", "bf16")
DERIVED = r"rotary_emb\.inv_freq$"  # in checkpoints of older transformers; made again from the configuration


def expert_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules that hold experts, by name."""
    return {name: module for name, module in model.named_modules() if is_experts(module)}


def linear_names(model: PreTrainedModel) -> set[str]:
    """Names of the layers that a weights format packs, lm_head among them."""
    return {name for name, m in model.named_modules() if isinstance(m, nn.Linear) and not is_router(name, m)}


def is_tied(model: PreTrainedModel) -> bool:
    """Whether lm_head is the embedding."""
    return bool(model.config.get_text_config().tie_word_embeddings)


def placed(checkpoint: Checkpoint, experts: Mapping[str, Any]) -> Iterator[Placed]:
    """What each tensor of the files is; args as in `place`."""
    for stored in checkpoint.tensors():
        yield from place(stored, experts)


def matched(checkpoint: Checkpoint, model: PreTrainedModel) -> Iterator[Placed]:
    """The tensors of a checkpoint that its model's definition asks for, each of the shape that it asks.

    Args:
        checkpoint: Where the tensors are.
        model: Its definition, as `empty_model` gives it.

    Raises:
        EngineError: A tensor that is unexpected, of another shape or, once all others came, missing.
    """
    experts = expert_modules(model)
    stacked = {f"{name}.{leaf}" for name in experts for leaf in ("gate_up_proj", "down_proj")}
    held = {name: tuple(t.shape) for name, t in model.state_dict(keep_vars=True).items() if name not in stacked}
    expected = held | expert_shapes(experts)
    ignored = [*(model._keys_to_ignore_on_load_unexpected or ()), DERIVED]
    found: set[str] = set()
    for one in placed(checkpoint, experts):
        stored, name = one.stored, one.name
        if name not in expected:
            if any(re.search(pattern, stored.name) for pattern in ignored) or _adds_nothing(stored, name, expected):
                continue
            if name in stacked:
                raise EngineError(f"model {stored.file}: tensor {stored.name} has shape {stored.shape}")
            raise EngineError(f"model {stored.file}: unexpected tensor {stored.name}")
        if stored.shape != expected[name]:
            raise EngineError(
                f"model {stored.file}: tensor {stored.name} has shape {stored.shape}, config.json asks {expected[name]}"
            )
        found.add(name)
        yield one
    missing = sorted(set(expected) - found - ({f"{HEAD}.weight"} if is_tied(model) else set()))
    if missing:
        raise EngineError(f"model {checkpoint.path}: tensor {missing[0]} is missing ({len(missing)} in all)")


def _adds_nothing(stored: StoredTensor, name: str, expected: Mapping[str, Any]) -> bool:
    """Whether it is a bias of zeros that the model does not have: some quantizers write one beside every matrix."""
    layer = name.removesuffix(".bias")
    named = layer != name and (layer in expected or f"{layer}.weight" in expected)
    return named and not bool(stored.read().any())
