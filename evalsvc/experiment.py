"""An experiment file: which model, which arms, which suites. Read once, then frozen."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from evalsvc.complaints import NAME_PATTERN
from evalsvc.engine.precision import PrecisionPlan, parse_plan
from evalsvc.errors import ConfigError, EvalsvcError
from evalsvc.filekinds import EXPERIMENT
from evalsvc.limits import Misplaced
from evalsvc.suites.spec import SuiteSpec
from evalsvc.yamlfile import read_model

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
SMALL_MODEL = "SmolLM2-135M-Instruct"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ArmConfig(_Frozen):
    """One arm.

    Attributes:
        plan: Plan text.
        calibration: File of prompts for calibrated KV scales.
        scales: File of given KV scales: `{"k": [...], "v": [...]}`, by layer, or by layer and head; or a checkpoint's
            directory.
        note: What readers of its results must know.
        inject: Named faults and their factors; the arm is marked as injected everywhere.
    """

    plan: str
    calibration: str | None = None
    scales: str | None = None
    note: str | None = None
    inject: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = {}

    @field_validator("plan")
    @classmethod
    def _readable(cls, text: str) -> str:
        try:
            parse_plan(text)
        except EvalsvcError as error:
            raise ValueError(str(error)) from None
        return text

    @property
    def parsed(self) -> PrecisionPlan:
        """The plan."""
        return parse_plan(self.plan)

    @property
    def decodes_as(self) -> tuple[object, ...]:
        """Everything that this file says of the decode stage; calibrated scales hang on prefill's weights too."""
        plan = self.parsed
        calibrated = (self.calibration, plan.prefill.weights) if plan.decode.kv.calibrated else None
        given = self.scales if plan.decode.kv.given else None
        return plan.decode, calibrated, given, self.inject.get("decode_k_scale")


class NoiseConfig(_Frozen):
    """The A/A check: the baseline a second time, in another order and in batches of another size."""

    batch: int = Field(default=11, ge=1)


class Experiment(_Frozen):
    """An experiment file.

    Attributes:
        file_kind: What such a file is called.
        name: What `ls` calls its runs.
        model: A model directory, or a `.gguf` file, a hub id, or `SmolLM2-135M-Instruct` for
            the small one in the cache.
        arms: Name to arm, in the order in which they run (the baseline always runs first).
        baseline: Name of the arm that the others are compared with.
        suites: What is asked.
        policy: Policy for the printed table; `--gate` overrides it.
        score_through: Stage that scores log-likelihood items; `auto` asks both when decode formats differ.
        probe: Text whose next-token distributions are compared with the baseline's, stage by stage.
        aa: The check of the baseline against itself; null leaves it out.
        seed: Of the order in which items are asked.
        threads: Torch threads. One thread makes every answer independent of its batch.
        workers: Processes that run arms at the same time, each with its own engine and its own copy of the weights.
        batch: Most requests side by side.
        kv_tokens: Tokens in each stage's KV pool.
        integrity: What is checked of KV pages before they are read; it changes no answer, an item that meets a page
            which lies is an error.
    """

    file_kind: ClassVar[str] = EXPERIMENT
    name: Name
    model: str
    arms: dict[Name, ArmConfig]
    baseline: Name
    suites: list[SuiteSpec] = Field(min_length=1)
    policy: str | None = None
    score_through: Literal["auto", "prefill", "decode", "both"] = "auto"
    probe: str | None = None
    aa: NoiseConfig | None = NoiseConfig()
    seed: int = Field(default=0, ge=0, le=2**31 - 2)  # any database holds it, and the next one, which is the A/A's
    threads: int = Field(default=1, ge=1, le=256)
    workers: int = Field(default=1, ge=1, le=64)
    batch: int = Field(default=32, ge=1, le=4096)
    kv_tokens: int = Field(default=16384, ge=16)
    integrity: Literal["tags", "off", "content", "content:first"] = "tags"

    @field_validator("integrity", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, value: object) -> object:
        return "off" if value is False else value

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        if self.baseline not in self.arms:
            raise Misplaced(f"'{self.baseline}' is none of the arms, which are {', '.join(self.arms)}", "baseline")
        if len(self.arms) < 2:
            raise Misplaced("holds the baseline alone; add at least one candidate", "arms")
        if self.arms[self.baseline].inject:
            raise Misplaced(
                "is of the baseline; only a candidate may have an injected fault", *("arms", self.baseline, "inject")
            )
        names = [suite.name for suite in self.suites]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Misplaced(
                    f"'{name}' is already the name of suite {names.index(name) + 1}", *("suites", index, "name")
                )
        return self

    @property
    def arms_in_order(self) -> list[str]:
        """Baseline first, then the candidates."""
        return [self.baseline, *(name for name in self.arms if name != self.baseline)]

    @property
    def throughs(self) -> tuple[str, ...]:
        """Stages that score log-likelihood items."""
        if self.score_through == "auto":
            base = self.arms[self.baseline]
            differs = any(arm.decodes_as != base.decodes_as for arm in self.arms.values())
            return ("prefill", "decode") if differs else ("prefill",)
        return ("prefill", "decode") if self.score_through == "both" else (self.score_through,)


def load_experiment(path: Path) -> Experiment:
    """Reads an experiment file.

    Raises:
        ConfigError: One sentence with file, line and key.
    """
    return read_model(path, Experiment, missing="`evalsvc init` writes one")


def model_path(experiment: Experiment, base_dir: Path, cache: Path) -> Path | str:
    """As `find_model`, of an experiment's model."""
    return find_model(experiment.model, base_dir, cache)


def find_model(model: str, base_dir: Path, cache: Path) -> Path | str:
    """Where the model is, or its hub id; the small model is decoded into the cache on first use.

    Raises:
        ConfigError: No such directory or file, and no hub id.
        EngineError: The small model's package is missing or altered.
    """
    if model == SMALL_MODEL:
        from evalsvc.engine.checkpoint.small_model import prepare

        return prepare(cache)
    path = base_dir / Path(model).expanduser()
    if path.exists():
        return path
    from evalsvc.engine.checkpoint.hub import is_hub_id

    if is_hub_id(model):
        return model
    message = f"model {path}: no such directory or .gguf file; give one, a hub id or `{SMALL_MODEL}`"
    raise ConfigError(message)


def experiment_hash(experiment: Experiment, asked: list[dict[str, Any]], passages: list[str]) -> str:
    """Hash of what an experiment asks of whom.

    Args:
        experiment: The file. The batch size is left out: it changes no answer. The pool size stays in: it decides which
            requests are refused as too long.
        asked: Key, chance level and scoring version of everything that an arm answers.
        passages: Texts of the probe.
    """
    unasked = {"batch", "workers", "policy", "aa", "probe", "model"}
    kept = experiment.model_dump(exclude={**dict.fromkeys(unasked, True), "arms": {"__all__": {"note"}}})
    return hashlib.sha256(
        json.dumps([kept, asked, passages], sort_keys=True).encode("utf-8", "surrogatepass")
    ).hexdigest()
