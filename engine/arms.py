"""An engine's arms: made when they are first asked, with each distinct stage and each set of weights held once."""

import hashlib
import json
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from evalsvc.errors import ConfigError

from . import calibration as calibrating
from .arm import Arm, ArmSpec
from .checkpoint.base import Checkpoint
from .devices import on, room_for
from .graphs import Capture
from .kv.pool import Scales
from .layout import layout_of
from .model import empty_model, longest_sequence
from .precision import KVFormat, StagePlan, WeightFormat
from .stage import DecodeStage, PrefillStage, Stage
from .text import Text
from .version import source_version
from .weights import WeightSet

StageT = TypeVar("StageT", bound=Stage)


def _stage_key(kind: type[Stage], spec: ArmSpec, scales: Scales | None) -> tuple:
    """Everything that makes two arms' stages the same."""
    plan: StagePlan = getattr(spec.plan, kind.name)
    sha256 = None if scales is None else scales.sha256()
    return kind.name, plan, sha256, spec.inject.get(f"{kind.name}_k_scale", 1.0)


class Arms:
    """Loads arms and lets go of them. Whoever makes or drops stages holds the lock of the loop that runs them.

    Attributes:
        specs: Name to specification.
        kv_tokens: Capacity of each stage's pool, in tokens.
        hashes: Of the model's files.
        stages: Those that are held.
        loaded: The arms that they serve, by name.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        specs: Mapping[str, ArmSpec],
        device: torch.device,
        capture: Capture | None,
        kv_tokens: int,
        cache: Path | None,
        poison: bool,
        max_length: int | None,
        integrity: str,
    ):
        """Nothing heavy is loaded yet. Args as in `Engine`; `capture` makes the graphs of decode steps."""
        self.specs, self.kv_tokens, self.hashes = dict(specs), kv_tokens, checkpoint.hashes()
        self.stages: dict[tuple, Stage] = {}
        self.loaded: dict[str, Arm] = {}
        self._checkpoint, self._device, self._capture, self._cache = checkpoint, device, capture, cache
        self._poison, self._asked_length, self._integrity = poison, max_length, integrity
        self._shared: dict[torch.dtype, dict[str, Tensor]] = {}
        self._weights: weakref.WeakValueDictionary[WeightFormat, WeightSet] = weakref.WeakValueDictionary()
        self._released: set[str] = set()
        self._magnitudes: dict[tuple, Tensor] = {}
        self._scales: dict[str, dict[str, Scales]] = {}

    @cached_property
    def text(self) -> Text:
        """The tokenizer."""
        return Text(self._checkpoint.tokenizer(), sorted(self._checkpoint.eos_ids()))

    @cached_property
    def _made_for(self) -> int | None:
        return longest_sequence(self._checkpoint)

    @property
    def max_length(self) -> int:
        """Longest sequence that is served, in tokens.

        Raises:
            ConfigError: More was asked than the model is made for or a pool holds.
        """
        asked, made_for = self._asked_length, self._made_for or self.kv_tokens
        most = min(made_for, self.kv_tokens)
        if asked is not None and asked > most:
            raise ConfigError(
                f"max_length {asked} is not from 1 to {most}: the model is made for {made_for} tokens, "
                f"a pool holds {self.kv_tokens}"
            )
        return asked or most

    @property
    def window(self) -> int:
        """Tokens of a rolling text's windows: the asked `max_length`, or what the model is made for.

        What a pool holds does not enter, since it must not change a score.
        """
        return self._asked_length or self._made_for or self.kv_tokens

    def get(self, name: str | None = None) -> Arm:
        """A loaded arm; the only one when no name is given.

        Raises:
            ConfigError: No arm of that name, or several and no name.
        """
        if name is None:
            if len(self.specs) != 1:
                raise ConfigError(f"name one of the arms {', '.join(self.specs)}")
            name = next(iter(self.specs))
        self._known(name)
        if name not in self.loaded:
            spec, scales = self.specs[name], self.scales(name)
            prefill = self._stage(PrefillStage, spec, scales.get("prefill"))
            decode = self._stage(DecodeStage, spec, scales.get("decode"))
            self.loaded[name] = Arm(name, spec, prefill, decode)
            self._released.discard(name)
        return self.loaded[name]

    def _known(self, name: str) -> None:
        if name not in self.specs:
            raise ConfigError(f"unknown arm {name!r}; known: {', '.join(self.specs)}")

    def release(self, name: str) -> None:
        """Lets go of an arm; its stages stay while an arm that was not released asks for the same.

        Raises:
            ConfigError: No arm of that name.
        """
        self._known(name)
        self.loaded.pop(name, None)
        self._released.add(name)
        needed = set()
        for other, spec in self.specs.items():
            if other not in self._released:
                scales = self.scales(other)
                needed |= {_stage_key(kind, spec, scales.get(kind.name)) for kind in (PrefillStage, DecodeStage)}
        self.stages = {key: stage for key, stage in self.stages.items() if key in needed}

    def resize(self, kv_tokens: int) -> None:
        """Gives every loaded arm pools of another size; the weights stay where they are."""
        names = list(self.loaded)
        weights = [stage.weights for stage in self.stages.values()]  # held until the new stages hold them
        self.stages, self.loaded, self.kv_tokens = {}, {}, kv_tokens
        for name in names:
            self.get(name)
        del weights

    def sharing(self, stage: Stage, arm: Arm) -> list[str]:
        """Other loaded arms whose answers the stage worked for too."""
        others = [
            other for other in self.loaded.values() if other is not arm and stage in (other.prefill, other.decode)
        ]
        return [other.name for other in others if other.answered and arm.answered]

    def scales(self, name: str) -> dict[str, Scales]:
        """Fixed scales of an arm's stages, by stage: read from its file, or from a calibration, cached or run now."""
        if name not in self._scales:
            spec = self.specs[name]
            plans = (("prefill", spec.plan.prefill.kv), ("decode", spec.plan.decode.kv))
            self._scales[name] = {
                stage: self._fixed_scales(spec, kv) for stage, kv in plans if kv.given or kv.calibrated
            }
        return self._scales[name]

    def _fixed_scales(self, spec: ArmSpec, kv: KVFormat) -> Scales:
        if kv.given:
            assert spec.scales is not None
            layout = layout_of(empty_model(self._checkpoint, torch.bfloat16))
            return calibrating.read_scales(spec.scales, kv, layout)
        assert spec.calibration is not None
        return calibrating.scales_from(self._amax(spec.plan.prefill.weights, spec.calibration), kv)

    def _amax(self, weights: WeightFormat, calibration: Path) -> Tensor:
        prompts = calibrating.read_prompts(calibration)
        key = (weights, tuple(prompts))
        if key not in self._magnitudes:
            recipe = [self.hashes, source_version(), str(weights), prompts]
            digest = hashlib.sha256(json.dumps(recipe).encode("utf-8", "surrogatepass")).hexdigest()
            path = None if self._cache is None else self._cache / f"{digest}.json"
            held = None if path is None else calibrating.load_amax(path)
            if held is None:
                ids = [self.text.encode(prompt) for prompt in prompts]
                with on(self._device):
                    held = calibrating.calibrate(self._weight_set(weights), ids).cpu()
                if path is not None:
                    calibrating.save_amax(path, held)
            self._magnitudes[key] = held
        return self._magnitudes[key]

    def _weight_set(self, fmt: WeightFormat) -> WeightSet:
        held = self._weights.get(fmt)
        if held is None:
            with on(self._device), room_for(f"the model with w={fmt}", "take a smaller format or another machine"):
                held = self._weights[fmt] = WeightSet(self._checkpoint, fmt, self._shared, self.max_length)
        return held

    def _stage(self, kind: type[StageT], spec: ArmSpec, scales: Scales | None) -> StageT:
        key = _stage_key(kind, spec, scales)
        held = self.stages.get(key)
        if held is None:
            plan: StagePlan = getattr(spec.plan, kind.name)
            factor = spec.inject.get(f"{kind.name}_k_scale", 1.0)
            weights = self._weight_set(plan.weights)
            options = scales, factor, self._poison, str(key), self._integrity
            captured: dict[str, Any] = {"capture": self._capture} if kind is DecodeStage else {}
            pool = f"a {kind.name} pool of {self.kv_tokens:,} tokens in kv={plan.kv}"
            with on(self._device), room_for(pool, "give a smaller kv_tokens"):
                held = self.stages[key] = kind(weights, plan, self.kv_tokens, *options, **captured)
        assert isinstance(held, kind)
        return held
