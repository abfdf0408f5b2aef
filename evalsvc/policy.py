"""What a release may cost: the margins and rules that a gate applies. Points here, proportions inside the gate."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from evalsvc.complaints import mistakes
from evalsvc.errors import ConfigError
from evalsvc.filekinds import POLICY
from evalsvc.limits import Budgets, Margin, Misplaced, MoreSampling, Points, Rule, Standing
from evalsvc.yamlfile import read_model


class Policy(Rule):
    """A policy file. Margins and the error limit are in points (hundredths), as people write them.

    Attributes:
        file_kind: What such a file is called.
        name: Shown in tables and stored with decisions.
        margin_points: Accepted drop of all items pooled.
        guard_points: Accepted drop of each suite; 5, or `margin_points` where that is more.
        margins: Rules for single suites, families and metrics; each goes before `guard_points`.
        alpha: Error rate of each direction, a proportion.
        max_error_points: Errors of one arm in one suite, in points of its items, above which nothing is decided.
        max_truncation_points: Answers of one suite cut by their limit, in points of its generated answers. A baseline
            above it is INVALID, a candidate above it REGRESSED where the rise is proven and INCONCLUSIVE where not.
        proof: Whether an arm whose formats nobody measured may be judged (`declared`) or not (`required`).
        rendering: Whether prompts must have become the same tokens in both arms.
        guards: `listed` names inconclusive suites and lets them pass, `strict` does not.
        inconclusive: What a pipeline does with INCONCLUSIVE: `block` exits 3, `accept` exits 0. The word stays.
        budgets: Limits of latency, throughput, capacity and cost.
        baseline: When a baseline of another run is stale, and what stands in for it; none takes any as it is.
        more_sampling: Which signals ask for more samples.
        design: `fixed` looks once, at all items; `sequential` looks after every block and may stop an arm early.
        block_items: Items between two looks of the sequential design.
    """

    file_kind: ClassVar[str] = POLICY
    name: Annotated[str, Field(min_length=1, max_length=100)]
    margin_points: Points = 1.0
    guard_points: Points = 5.0
    margins: list[Margin] = Field(default_factory=list)
    alpha: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.05
    max_error_points: Points = 2.0
    max_truncation_points: Points | None = None
    proof: Literal["declared", "required"] = "required"
    rendering: Literal["same", "may_differ"] = "same"
    guards: Literal["listed", "strict"] = "listed"
    inconclusive: Literal["block", "accept"] = "block"
    design: Literal["fixed", "sequential"] = "fixed"
    budgets: Budgets | None = None
    baseline: Standing | None = None
    more_sampling: MoreSampling | None = None
    block_items: Annotated[int, Field(ge=1)] = 250

    @property
    def margin(self) -> float:
        """Pooled margin, a proportion."""
        return self.margin_points / 100

    def guard(self, suite: str) -> float:
        """Guard margin of a suite, a proportion."""
        rule = self.rule(suite)
        if rule is not None and rule.margin_points is not None:
            return rule.margin_points / 100
        given = "guard_points" in self.model_fields_set
        return (self.guard_points if given else max(self.guard_points, self.margin_points)) / 100

    def rule(self, suite: str, family: str | None = None, metric: str | None = None) -> Margin | None:
        """The rule about exactly this suite, family and metric."""
        return next((rule for rule in self.margins if rule.place == (suite, family, metric)), None)

    @property
    def metric_suites(self) -> set[str]:
        """Suites of which a rule names a metric, whose samples are then read with all their scores."""
        return {rule.suite for rule in self.margins if rule.metric is not None}

    @field_validator("margins")
    @classmethod
    def _each_rule_once(cls, rules: list[Margin]) -> list[Margin]:
        places: dict[object, int] = {}
        for index, rule in enumerate(rules):
            if rule.place in places:
                raise Misplaced(f"is a second rule for {rule.in_words} (rule {places[rule.place] + 1} is one)", index)
            places[rule.place] = index
        return rules

    @model_validator(mode="after")
    def _no_contradiction(self) -> "Policy":
        if "guard_points" in self.model_fields_set and self.guard_points < self.margin_points:
            raise Misplaced(
                f"{self.guard_points:g} is below margin_points {self.margin_points:g}: "
                "no suite could lose what all of them together may",
                "guard_points",
            )
        for index, rule in enumerate(self.margins):
            for name in ("metric", "floor_points"):
                if self.design == "sequential" and getattr(rule, name) is not None:
                    raise Misplaced(
                        "is read once, of all items; `design: sequential` decides by the items' own metrics alone",
                        *("margins", index, name),
                    )
        return self

    @property
    def sha256(self) -> str:
        """Hash of the whole policy, stored with every decision made under it."""
        return hashlib.sha256(json.dumps(self.model_dump(exclude_none=True), sort_keys=True).encode()).hexdigest()


def load_policy(path: str | Path) -> Policy:
    """Reads a policy file.

    Raises:
        ConfigError: One sentence with file, line and key.
    """
    return read_model(path, Policy)


def typed_policy(**fields: object) -> Policy:
    """A policy from flags.

    Raises:
        ConfigError: One sentence with the flag.
    """
    try:
        return Policy(**fields)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        first = mistakes(error, Policy)[0]
        flag = str((*first.place, "policy")[0])
        about = first.sentence.removeprefix(f"'{flag}': ")
        raise ConfigError(f"--{flag.removesuffix('_points').replace('_', '-')}: {about}") from None
