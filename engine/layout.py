"""What a model's attention asks for, measured by one forward without memory, and held against its configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from evalsvc.errors import CapabilityError

from .sizes import LatentShape

PROBE_NAME = "evalsvc_probe"
PROBE_TOKENS = 3


@dataclass(frozen=True)
class Layout:
    """Keys and values of one token, the same in every layer, and how far back each layer looks.

    Attributes:
        windows: By layer the keys that a query reads, its own the last; None: all up to its own.
        latent: What a token keeps where attention is latent: one key, all of a latent and a rope key.
    """

    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    latent: LatentShape | None = None

    @property
    def layers(self) -> int:
        """Layers that hold keys and values."""
        return len(self.windows)


@dataclass(frozen=True)
class Call:
    """What one attention call was given; shapes without the batch.

    Attributes:
        latent: Numbers of a latent, of a rope key, and of an index key or 0; None where heads have keys of their own.
    """

    layer: int
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    masked: bool
    causal: bool
    window: int | None
    softcap: float | None
    latent: tuple[int, int, int] | None = None


_calls: ContextVar[list[Call]] = ContextVar("evalsvc_calls")


def _note(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """An attention function that computes nothing and notes what it was given."""
    call = Call(
        layer=module.layer_idx,  # pyright: ignore[reportArgumentType]
        query=tuple(query.shape[1:]),
        key=tuple(key.shape[1:]),
        value=tuple(value.shape[1:]),
        masked=attention_mask is not None,
        causal=getattr(module, "is_causal", None) is not False,
        window=sliding_window,
        softcap=softcap,
    )
    _calls.get().append(call)
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def note_latent(layer: int, heads: int, latent: Tensor, rope: Tensor, index: Tensor | None) -> None:
    """As `_note`, for latent attention: what a token keeps, each of shape (tokens, numbers)."""
    key = (1, len(latent), latent.shape[1] + rope.shape[1])
    kept = latent.shape[1], rope.shape[1], 0 if index is None else index.shape[1]
    _calls.get().append(Call(layer, (heads, *key[1:]), key, key, False, True, None, None, kept))


def _no_experts(experts: nn.Module, hidden: Tensor, *_: object) -> Tensor:
    """Experts that compute nothing."""
    return torch.zeros_like(hidden)


AttentionInterface.register(PROBE_NAME, _note)
ALL_EXPERTS_FUNCTIONS.register(PROBE_NAME, _no_experts)


@contextmanager
def _noting(model: PreTrainedModel) -> Iterator[list[Call]]:
    calls: list[Call] = []
    token, config = _calls.set(calls), model.config
    name, experts = config._attn_implementation, config._experts_implementation
    config._attn_implementation = config._experts_implementation = PROBE_NAME
    try:
        yield calls
    finally:
        config._attn_implementation, config._experts_implementation = name, experts
        _calls.reset(token)


def layout_of(model: PreTrainedModel) -> Layout:
    """Runs the model's own forward over a few tokens and checks that pages can serve all it asks.

    Args:
        model: Usually on the meta device, where this takes no memory and milliseconds.

    Raises:
        CapabilityError: A layer that attends never or twice, a mask, attention that is not causal, layers of
            unequal shapes, or a window or soft cap of the configuration that does not arrive.
    """
    device = next(model.parameters()).device
    with _noting(model) as calls, torch.inference_mode():
        model(
            input_ids=torch.zeros(1, PROBE_TOKENS, dtype=torch.long, device=device),
            position_ids=torch.arange(PROBE_TOKENS, device=device)[None],
            use_cache=False,
            logits_to_keep=1,
        )
    config = model.config.get_text_config()
    by_layer: dict[int, Call] = {}
    for call in calls:
        if call.layer in by_layer:
            raise CapabilityError(f"layer {call.layer} attends more than once in one forward")
        by_layer[call.layer] = call
    for layer in range(config.num_hidden_layers):
        if layer not in by_layer:
            raise CapabilityError(f"layer {layer} has no attention that keys and values in pages could serve")
        _check(by_layer[layer], config)
    first = calls[0]
    for call in calls:
        if call.key != first.key:
            raise CapabilityError(f"layer {call.layer} has keys of another shape than layer {first.layer}")
    windows = tuple(by_layer[layer].window for layer in sorted(by_layer))
    return Layout(first.key[0], first.key[2], windows, _latent_shape(by_layer))


def _latent_shape(by_layer: dict[int, Call]) -> LatentShape | None:
    kept = {layer: call.latent for layer, call in sorted(by_layer.items()) if call.latent is not None}
    if not kept:
        return None
    indexed = tuple(layer for layer, (_, _, index) in kept.items() if index)
    rank, rope, index = max(kept.values(), key=lambda found: found[2])
    return LatentShape(len(kept), rank, rope, index, indexed)


def _check(call: Call, config: Any) -> None:
    where = f"layer {call.layer}"
    if call.masked:
        raise CapabilityError(f"{where} brings a mask of its own; only causal attention is served")
    if not call.causal:
        raise CapabilityError(f"{where} attends to later tokens; only causal attention is served")
    if call.key != call.value or call.key[2] != call.query[2]:
        raise CapabilityError(
            f"{where} has queries, keys and values of {call.query[2]}, {call.key[2]} and {call.value[2]} numbers "
            "a head; only equal ones are served"
        )
    window = asked_window(config, call.layer)
    if call.window != window:
        raise CapabilityError(
            f"{where}: the configuration asks for a sliding window of {window}, its attention gets {call.window}"
        )
    softcap = getattr(config, "attn_logit_softcapping", None)
    if call.softcap != softcap:
        raise CapabilityError(
            f"{where}: the configuration asks for a soft cap of {softcap}, its attention gets {call.softcap}"
        )


def asked_window(config: Any, layer: int) -> int | None:
    """The sliding window that the configuration asks of a layer.

    Raises:
        CapabilityError: The layer is to slide, and no window is given.
    """
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return window if getattr(config, "use_sliding_window", True) else None
    if layer_types[layer] != "sliding_attention":
        return None
    if window is None:
        raise CapabilityError(f"layer {layer} is of type sliding_attention, and config.json has no sliding_window")
    return window
