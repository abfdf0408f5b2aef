"""Rows of a verdict table, out of the JSON that the gate stored. Nothing is decided or recomputed here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalsvc.decision import SCHEMA

POOLED, SUITE, FAMILY, METRIC = "pooled", "suite", "family", "metric"


@dataclass(frozen=True, kw_only=True)
class VerdictRow:
    """One line of a verdict table. Drop, bounds and margin in points; None where the gate gave no value.

    Attributes:
        level: `pooled`, `suite`, `metric`, or `family` (described, without a verdict of its own).
        metric: In rows of a metric its name; drop, bounds and margin are None where it has units of its own, and
            `remark` says them.
        items: Items of the row, answered or not; `n` of them are scored in both arms.
        baseline_right: Of these n the ones that the baseline has right.
        method: Test and bound that decided.
        more_items: About how many more would decide; None where that is not the question.
        word: The verdict, None for a family.
        remark: What stands beside the word: severity, `drop detected`, `saturated`, a reason.
        counted: Whether its items enter the suite and the pooled row.
    """

    level: str
    suite: str
    family: str
    through: str
    items: int
    n: int
    baseline_right: int | None
    lost: int
    gained: int
    drop: float | None
    lower: float | None
    upper: float | None
    margin: float | None
    p: float | None
    p_adjusted: float | None
    method: str
    word: str | None
    remark: str
    factors_met: tuple[str, ...]
    blind: bool
    counted: bool
    metric: str = ""
    more_items: int | None = None

    @property
    def label(self) -> str:
        """The row's name: `pooled`, or suite, metric or family with the stage that scored."""
        if self.level == POOLED:
            return "pooled"
        name = self.family if self.level == FAMILY else self.suite
        name += f", {self.metric}" if self.metric else ""
        return f"{name} · through {self.through}" if self.through else name

    @property
    def full_label(self) -> str:
        """The row's name where its suite's row does not stand above it."""
        return f"{self.suite} · {self.label}" if self.level == FAMILY else self.label

    @property
    def described_only(self) -> bool:
        """A family that neither is blind nor needs a word of its own."""
        return self.level == FAMILY and not self.blind


def rows_of(decision: Mapping[str, Any]) -> list[VerdictRow]:
    """The rows of a stored decision, in its order.

    Raises:
        ValueError: The decision is of another schema than this page reads, or incomplete.
    """
    schema = decision.get("schema")
    if schema != SCHEMA:
        raise ValueError(f"the stored decision has schema {schema!r}, this page reads {SCHEMA}; decide it again")
    try:
        return [_row(row) for row in decision["rows"]]
    except KeyError as error:
        raise ValueError(f"the stored decision lacks {error}; decide it again") from error


def _row(row: Mapping[str, Any]) -> VerdictRow:
    return VerdictRow(
        level=row["level"],
        suite=row["suite"],
        family=row["family"],
        through=row["through"],
        items=row["items"],
        n=row["n"],
        baseline_right=row["baseline_right"],
        lost=row["b"],
        gained=row["c"],
        drop=row["drop_points"],
        lower=row["lower_points"],
        upper=row["upper_points"],
        margin=row["margin_points"],
        p=row["p"],
        p_adjusted=row["p_adjusted"],
        method=row["method"],
        word=row["verdict"],
        remark=", ".join(_remarks(row)),
        factors_met=tuple(row["factors_met"]),
        blind=row["blind"],
        counted=row["counted"],
        metric=row["metric"],
        more_items=row["more_items"],
    )


def _remarks(row: Mapping[str, Any]) -> list[str]:
    found = [] if row["blind"] else [row["remark"]]
    if row["more_items"]:
        found.append(f"about {row['more_items']:,} more items would decide")
    if row["in_units"]:
        found.append(_in_units(row["in_units"]))
    if row["few_clusters"]:
        found.append("conditional on these few clusters")
    return [remark for remark in found if remark]


def _in_units(own: Mapping[str, Any]) -> str:
    """A metric's own numbers, in its units."""
    known = {name: f"{value:.4g}" for name, value in own.items() if isinstance(value, (int, float))}
    parts = [
        f"{known['baseline_value']} to {known['candidate_value']}"
        if {"baseline_value", "candidate_value"} <= {*known}
        else "",
        f"worse by {known['drop']}" if "drop" in known else "",
        f"at most by {known['upper']}" if "upper" in known else "",
        f"margin {known['margin']}" if "margin" in known else "",
    ]
    return "; ".join(part for part in parts if part)
