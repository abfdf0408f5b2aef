"""One arm of an engine: its plan, its two stages, and what ran side by side."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from evalsvc.errors import CapabilityError, ConfigError

from .precision import PrecisionPlan
from .stage import DecodeStage, PrefillStage, Stage
from .work import Work

FAULTS = ("prefill_k_scale", "decode_k_scale")


@dataclass(frozen=True)
class ArmSpec:
    """What an arm asks of an engine.

    Attributes:
        plan: The precision plan.
        calibration: File of prompts, when a KV format is calibrated.
        scales: File of scales, or checkpoint that holds some, when a KV format's are given.
        inject: Named faults: `prefill_k_scale` and `decode_k_scale` are multiplied into the K scale where that stage
            reads pages.
    """

    plan: PrecisionPlan
    calibration: Path | None = None
    inject: dict[str, float] = field(default_factory=dict)
    scales: Path | None = None

    def check(self) -> None:
        """Refuses what cannot be served as written.

        Raises:
            ConfigError: A calibration or scales that are missing or unused, or an unknown fault.
            CapabilityError: A fault that this plan has no place for.
        """
        calibrated = self.plan.prefill.kv.calibrated or self.plan.decode.kv.calibrated
        if calibrated and self.calibration is None:
            raise ConfigError(f"plan {str(self.plan)!r} is calibrated: give the arm `calibration: FILE.jsonl`")
        if self.calibration is not None and not calibrated:
            raise ConfigError(f"plan {str(self.plan)!r} has no calibrated KV: remove the arm's `calibration`")
        given = self.plan.prefill.kv.given or self.plan.decode.kv.given
        if given and self.scales is None:
            raise ConfigError(f"plan {str(self.plan)!r} has given scales: give the arm `scales: FILE.json`")
        if self.scales is not None and not given:
            raise ConfigError(f"plan {str(self.plan)!r} has no KV with given scales: remove the arm's `scales`")
        for fault in self.inject:
            if fault not in FAULTS:
                raise ConfigError(f"unknown fault {fault!r} to inject; known: {', '.join(FAULTS)}")
            stage = self.plan.prefill if fault.startswith("prefill") else self.plan.decode
            if not stage.kv.scale:
                raise CapabilityError(f"fault {fault!r} needs a KV format with a scale, {stage.kv} has none")


class Arm:
    """An arm being served.

    Attributes:
        started: Per stage the stage, and its work before this arm: stages are shared between arms.
        batches: Requests in each forward of this arm, for the proof: count, mean size, and a hash of who ran with whom.
    """

    def __init__(self, name: str, spec: ArmSpec, prefill: PrefillStage, decode: DecodeStage):
        self.name, self.spec, self.prefill, self.decode = name, spec, prefill, decode
        self.started: dict[str, tuple[Stage, Work]] = {s.name: (s, s.work.copy()) for s in (prefill, decode)}
        self._digest = hashlib.sha256()
        self._batches = 0
        self._members = 0

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        return self.prefill.weights.model.config.vocab_size

    @property
    def answered(self) -> bool:
        """Whether any forward served a request of it."""
        return self._batches > 0

    def note_batch(self, ids: Iterable[str]) -> None:
        """Notes which requests one forward served."""
        members = list(ids)
        self._batches += 1
        self._members += len(members)
        self._digest.update("\n".join(members).encode("utf-8", "surrogatepass") + b"\0")

    def batches(self) -> dict[str, object]:
        """Count, mean size and hash of the batches so far."""
        mean = self._members / self._batches if self._batches else None
        return {"count": self._batches, "mean_requests": mean, "sha256": self._digest.hexdigest()}
