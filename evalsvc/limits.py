"""The rules inside a policy: margins of single suites, families and metrics. Points as people write them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from evalsvc.modes import FREE, PREFIX

Points = Annotated[float, Field(ge=0, lt=100, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Better = Literal["higher", "lower"]
Statistic = Literal["mean", "perplexity", "bits_per_byte", "f1", "mcc", "bleu", "chrf", "chrf++", "ter"]


class Misplaced(ValueError):
    """A complaint about a key further inside (or beside) what was validated; `loc` leads there."""

    def __init__(self, message: str, *loc: int | str) -> None:
        super().__init__(message)
        self.loc = loc


class Rule(BaseModel):
    """Base of what stands inside a policy: frozen, no unknown key, and in a file no key without a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="after")
    def _no_empty_key(self, info: ValidationInfo) -> "Rule":
        for name in self.model_fields_set:
            if getattr(self, name) is None and info.context is not None:
                raise Misplaced("has no value; leave the key out or give one", name)
        return self


Setting = Literal[
    "tokenizer",
    "engine",
    "device",
    "kernels",
    "threads",
    "max_length",
    "integrity",
    "calibration",
    "torch",
    "driver",
    "suites",
    "template",
]


class Standing(Rule):
    """When a baseline of another run no longer stands for what is deployed, and what is done then.

    Attributes:
        max_age_days: Days that its run may have begun before the candidate's.
        same: Settings that both arms must share, by their names in `evalsvc show ARM --json` (`details`).
        fresh: What stands in for a stale baseline: the same plan on the same checkpoints in the candidate's own run
            (`if_stale`; `always` asks for it however fresh the baseline is), or nothing (`never`).
    """

    max_age_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    same: list[Setting] = Field(default_factory=list)
    fresh: Literal["if_stale", "always", "never"] = "if_stale"


class Margin(Rule):
    """What one suite, family or metric may lose, in place of the policy's `guard_points`.

    A rule with `family` is about that family of the suite. One with `metric` is about that metric: where it is the
    items' own right-or-wrong metric the rule is about the same row as without it, and goes before it; any other metric
    gets a row of its own.

    Attributes:
        suite: Suite that the rule is about.
        family: Family of that suite.
        metric: Metric of its items.
        margin_points: Accepted drop of a metric from 0 to 1.
        margin: Accepted worsening of any other metric, in that metric's own units.
        better: Whether more of the metric is better; with `margin` only.
        statistic: How items make the metric: their mean, or a statistic of the whole corpus; with `margin` only.
        floor_points: Least accuracy of the candidate, whatever the baseline's.
    """

    suite: Name
    family: Name | None = None
    metric: Name | None = None
    margin_points: Points | None = None
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    better: Better = "higher"
    statistic: Statistic = "mean"
    floor_points: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """What the rule is about."""
        return self.suite, self.family, self.metric

    @property
    def about_mode(self) -> bool:
        """Whether it gates a failure mode, which prompts that carry no verdict have too."""
        return self.metric is not None and self.metric.startswith((PREFIX, FREE))

    @property
    def in_words(self) -> str:
        """What the rule is about, as text."""
        parts = [f"suite '{self.suite}'"]
        parts += [f"family '{self.family}'"] if self.family else []
        parts += [f"metric '{self.metric}'"] if self.metric else []
        return ", ".join(parts)

    @model_validator(mode="after")
    def _one_kind_of_limit(self) -> "Margin":
        if self.margin is None:
            if self.margin_points is None and self.floor_points is None:
                raise ValueError("names no limit; give margin_points, floor_points, or a metric's margin")
            for name in ("better", "statistic"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise Misplaced("belongs to a margin in a metric's own units (`metric` and `margin`)", name)
        else:
            if self.metric is None:
                raise Misplaced("is in a metric's own units; name the metric", "margin")
            for name in ("margin_points", "floor_points"):
                if getattr(self, name) is not None:
                    raise Misplaced("is for metrics from 0 to 1, and `margin` for others; give one", name)
        return self


SignalName = Literal["gold_margin", "brier", "gold_probability"]


class MoreSampling(Rule):
    """Which signals ask for more samples beside a PASS or an INCONCLUSIVE. They never change the word.

    Attributes:
        signals: Names of signals.
        alpha: Two-sided p of a worsening from which on it asks.
    """

    signals: Annotated[list[SignalName], Field(min_length=1)]
    alpha: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.01

    @field_validator("signals")
    @classmethod
    def _each_once(cls, names: list[str]) -> list[str]:
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Misplaced(f"names {name} twice", index)
        return names


_Figure = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]
_NO_LIMITS = ("device", "prompt_tokens", "concurrency")


class Budgets(Rule):
    """Limits of what an answer may cost. Figures are compared as they were measured, without a test.

    Attributes:
        device: Device type (`cpu`, `cuda`) that the candidate has to have run on.
        prompt_tokens: With `concurrency` the cell of `evalsvc bench-serve` that the limits of serving are about; not
            needed where one was measured.
        concurrency: As `prompt_tokens`.
        ttft_p50_s: Most seconds to the first token of half of the requests of that cell.
        ttft_p95_s: The same of 95 % of them.
        ttft_p99_s: The same of 99 % of them.
        ttft_p50_ratio: Most of the candidate's figure over the baseline's.
        ttft_p95_ratio: As `ttft_p50_ratio`.
        ttft_p99_ratio: As `ttft_p50_ratio`.
        itl_p50_s: Most seconds between two tokens in half of the gaps of that cell.
        itl_p95_s: The same of 95 % of them.
        itl_p99_s: The same of 99 % of them.
        itl_p50_ratio: As `ttft_p50_ratio`.
        itl_p95_ratio: As `ttft_p50_ratio`.
        itl_p99_ratio: As `ttft_p50_ratio`.
        generated_tokens_s: Least generated tokens a second of that cell.
        generated_ratio: Least of the candidate's figure over the baseline's.
        latency_p50_s: Most seconds of work (waiting in a queue left out) of half of the samples.
        latency_p95_s: The same of 95 % of them.
        latency_p99_s: The same of 99 % of them.
        latency_p50_ratio: Most of the candidate's figure over the baseline's.
        latency_p95_ratio: As `latency_p50_ratio`.
        latency_p99_ratio: As `latency_p50_ratio`.
        throughput_tokens_s: Least tokens that both stages computed a second of their work.
        throughput_ratio: Least of the candidate's figure over the baseline's.
        capacity_tokens_per_gib: Least tokens whose keys and values the decode stage holds in a GiB.
        capacity_ratio: As `throughput_ratio`.
        cost_per_million_tokens: Most of what the arm's details say of its cost, else of what was measured at a price.
        cost_ratio: As `latency_p50_ratio`.
    """

    device: Name | None = None
    prompt_tokens: _Count | None = None
    concurrency: _Count | None = None
    ttft_p50_s: _Figure | None = None
    ttft_p95_s: _Figure | None = None
    ttft_p99_s: _Figure | None = None
    ttft_p50_ratio: _Figure | None = None
    ttft_p95_ratio: _Figure | None = None
    ttft_p99_ratio: _Figure | None = None
    itl_p50_s: _Figure | None = None
    itl_p95_s: _Figure | None = None
    itl_p99_s: _Figure | None = None
    itl_p50_ratio: _Figure | None = None
    itl_p95_ratio: _Figure | None = None
    itl_p99_ratio: _Figure | None = None
    generated_tokens_s: _Figure | None = None
    generated_ratio: _Figure | None = None
    latency_p50_s: _Figure | None = None
    latency_p95_s: _Figure | None = None
    latency_p99_s: _Figure | None = None
    latency_p50_ratio: _Figure | None = None
    latency_p95_ratio: _Figure | None = None
    latency_p99_ratio: _Figure | None = None
    throughput_tokens_s: _Figure | None = None
    throughput_ratio: _Figure | None = None
    capacity_tokens_per_gib: _Figure | None = None
    capacity_ratio: _Figure | None = None
    cost_per_million_tokens: _Figure | None = None
    cost_ratio: _Figure | None = None

    @model_validator(mode="after")
    def _no_contradiction(self) -> "Budgets":
        if all(value is None for name, value in self if name not in _NO_LIMITS):
            raise ValueError("names no limit")
        for what in ("latency", "ttft", "itl"):
            for lower, higher in (("p50", "p95"), ("p95", "p99"), ("p50", "p99")):
                ours, theirs = (getattr(self, f"{what}_{name}_s") for name in (lower, higher))
                if ours is not None and theirs is not None and ours > theirs:
                    raise Misplaced(
                        f"{ours:g} is above {what}_{higher}_s {theirs:g}, which it can never reach",
                        f"{what}_{lower}_s",
                    )
        return self
