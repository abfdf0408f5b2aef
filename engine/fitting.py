"""What each arm's plan will be refused for, looked for in all arms before the first one is loaded.

An arm is loaded when it is first asked, which may be long after others were answered. Names, shapes and config.json
tell most of what can be wrong. Of tensors only what lies beside matrices is read (zero points, orders of inputs,
shapes, biases that the model does not have): they say how a matrix is stored. No matrix's codes or scales are.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import gcd

import torch
from transformers import PreTrainedModel

from evalsvc.errors import CapabilityError, ConfigError

from .arm import ArmSpec
from .calibration import read_prompts, read_scales
from .checkpoint.base import Checkpoint, StoredTensor
from .layout import layout_of
from .matching import HEAD, PLAIN_KINDS, is_tied, linear_names, matched
from .model import check_kv, empty_model
from .precision import STORED, WeightFormat
from .quantize import check_inputs


def check_arms(checkpoint: Checkpoint, arms: Mapping[str, ArmSpec]) -> None:
    """Refuses, before any arm is loaded, what the files' headers, config.json and the arms' own files tell of each.

    Raises:
        CapabilityError: An architecture or a format that is not served.
        ConfigError: A format that does not fit a matrix, or `stored` where another format says the same; prompts of a
            calibration or given scales that cannot be used.
        EngineError: A checkpoint that does not fit its configuration.
    """
    for name, spec in arms.items():
        with _named(name):
            check_kv(checkpoint, spec.plan)
    model = empty_model(checkpoint, torch.bfloat16)
    matrices = _matrices(checkpoint, model)
    formats = {str(fmt) for spec in arms.values() for fmt in _formats(spec)}
    for name, spec in arms.items():
        with _named(name):
            for fmt in _formats(spec):
                check_format(fmt, matrices)
                if fmt.kind == STORED:
                    _check_stored(checkpoint, matrices, formats, tied=is_tied(model))
            if spec.calibration is not None:
                read_prompts(spec.calibration)
            for kv in (spec.plan.prefill.kv, spec.plan.decode.kv):
                if kv.given and spec.scales is not None:
                    read_scales(spec.scales, kv, layout_of(model))


def check_format(fmt: WeightFormat, matrices: Mapping[str, StoredTensor]) -> None:
    """Refuses a format that a matrix cannot be held in.

    Args:
        fmt: The format.
        matrices: By name, lm_head among them.

    Raises:
        ConfigError: Its groups or blocks do not divide the matrix's inputs.
        CapabilityError: Under `stored`, one that is stored as no plan's format.
    """
    asked = {name: stored for name, stored in matrices.items() if name != HEAD or fmt.lm_head or fmt.kind == STORED}
    together = gcd(*(stored.shape[1] for stored in asked.values()))
    for name, stored in asked.items():
        own = stored.own_format() if fmt.kind == STORED else fmt
        check_inputs(own, stored.shape[1], name, together)


def _formats(spec: ArmSpec) -> tuple[WeightFormat, WeightFormat]:
    return spec.plan.prefill.weights, spec.plan.decode.weights


def _matrices(checkpoint: Checkpoint, model: PreTrainedModel) -> dict[str, StoredTensor]:
    """All that a format may pack, by the name that `PlanMatrix` is given; a tied head is the embedding."""
    linears = linear_names(model)
    found: dict[str, StoredTensor] = {}
    embedding = next(n for n, m in model.named_modules() if m is model.get_input_embeddings())
    for stored, name, module, *_ in matched(checkpoint, model):
        owner, _, leaf = name.rpartition(".")
        if module:
            found[name] = stored
        elif leaf == "weight" and owner in linears:
            found[owner] = stored
        if is_tied(model) and name == f"{embedding}.weight":
            found[HEAD] = stored
    return found


def _check_stored(
    checkpoint: Checkpoint, matrices: Mapping[str, StoredTensor], others: Collection[str], *, tied: bool
) -> None:
    """Refuses `stored` where it is another of the formats, or none: nothing would differ and be said to.

    A head that the files have quantized stays packed under `stored`; under a format by name that takes `:lm_head`.

    Args:
        checkpoint: For the error.
        matrices: As in `check_format`.
        others: The formats of all arms.
        tied: Whether the head is the embedding, which is held as plain numbers.
    """
    body = {stored.own_format() for name, stored in matrices.items() if name != HEAD}
    if len(body) > 1:
        return
    (only,) = body
    head = only if tied or HEAD not in matrices else matrices[HEAD].own_format()
    plain_head = tied or head.kind in PLAIN_KINDS
    if not plain_head and head != only:
        return
    same = str(only if plain_head else replace(only, lm_head=True))
    if only.kind in PLAIN_KINDS or same in others:
        what = "is not quantized" if only.kind in PLAIN_KINDS else f"holds all its matrices in {same}"
        raise ConfigError(f"model {checkpoint.path} {what}, so that w={STORED} is w={same}: write that")


@contextmanager
def _named(arm: str) -> Iterator[None]:
    """Says of which arm a refusal is."""
    try:
        yield
    except (ConfigError, CapabilityError) as error:
        raise type(error)(f"arm {arm}: {error}") from None
