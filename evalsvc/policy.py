"""What a release may cost: the margins and rules that a gate applies. Points here, proportions inside the gate."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalsvc.errors import ConfigError
from evalsvc.yamlfile import read_model

Points = Annotated[float, Field(ge=0, lt=100, allow_inf_nan=False)]


class Policy(BaseModel):
    """A policy file. Margins and the error limit are in points (hundredths), as people write them.

    Attributes:
        name: Shown in tables and stored with decisions.
        margin_points: Accepted drop of all items pooled.
        guard_points: Accepted drop of each suite.
        guard_points_by_suite: Another guard for the suites named here.
        alpha: Error rate of each direction, a proportion.
        max_error_points: Errors of one arm in one suite, in points of its items, above which nothing is decided.
        proof: Whether an arm whose formats nobody measured may be judged (`declared`) or not (`required`).
        rendering: Whether prompts must have become the same tokens in both arms.
        guards: `listed` names inconclusive suites and lets them pass, `strict` does not.
        inconclusive: What a pipeline does with INCONCLUSIVE: `block` exits 3, `accept` exits 0. The word stays.
        design: `fixed` looks once, at all items; `sequential` looks after every block and may stop an arm early.
        block_items: Items between two looks of the sequential design.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    margin_points: Points = 1.0
    guard_points: Points = 5.0
    guard_points_by_suite: dict[str, Points] = {}
    alpha: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.05
    max_error_points: Points = 2.0
    proof: Literal["declared", "required"] = "required"
    rendering: Literal["same", "may_differ"] = "same"
    guards: Literal["listed", "strict"] = "listed"
    inconclusive: Literal["block", "accept"] = "block"
    design: Literal["fixed", "sequential"] = "fixed"
    block_items: Annotated[int, Field(ge=1)] = 250

    @property
    def margin(self) -> float:
        """Pooled margin, a proportion."""
        return self.margin_points / 100

    def guard(self, suite: str) -> float:
        """Guard margin of a suite, a proportion."""
        return self.guard_points_by_suite.get(suite, self.guard_points) / 100

    @property
    def sha256(self) -> str:
        """Hash of the whole policy, stored with every decision made under it."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()


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
        first = error.errors(include_url=False)[0]
        flag = str(first["loc"][0]).removesuffix("_points").replace("_", "-")
        raise ConfigError(f"--{flag} {first['input']}: {first['msg'].lower()}") from None
