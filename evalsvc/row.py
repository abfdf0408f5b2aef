"""One line of a decision's table, in numbers, in words and as JSON. Proportions inside, points in text and JSON."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

_JSON_NAMES = {"scope": "level", "lost": "b", "gained": "c"}
_TESTS = {  # how a method's name begins -> what its p is called; all else is exact
    "hybrid": "sequential",
    "e-processes": "sequential",
    "sign-flip": "sign-flip",
    "permutation": "permutation",
}
_ONLY_POINTS = ("newcombe", "discordance", "floor", "candidate_bounds")
_IN_POINTS = ("drop", "lower", "upper", "interval", "margin", "baseline_value", "candidate_value")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        scope: `pooled`, `suite` and `metric` rows carry a verdict; `family` rows describe, unless a rule guards them.
        metric: In `metric` rows the metric; empty where it is the items' own from 0 to 1.
        unit: The metric, where drop, bounds and margin are in its own units; empty where they are proportions.
        better: Whether more of the metric is better. A positive drop is worse either way.
        through: Stage that was asked for the scored logits, in family rows; empty for generations.
        items: Items of the row, answered or not.
        n: Items scored in both arms; everything that follows is about these. Numbers are None when there are none.
        lost: Items right in the baseline only; items that are worse in the candidate where values are no 0 or 1.
        method: Test and bound that decide.
        p: One-sided p against "no drop".
        p_adjusted: After Holm over the pooled row, suites and metrics. In family rows after Benjamini-Hochberg inside
            the suite; None while the suite's own drop is not proven.
        interval: Two-sided at 1 - alpha.
        clusters: Clusters where they decide; None where items are independent.
        baseline_value: The baseline's mean or corpus metric, in the row's unit.
        candidate_value: As `baseline_value`.
        flagged: A family whose drop is real after correction, in a suite whose drop is.
        floor: Least accuracy of the candidate.
        candidate_bounds: One-sided bounds of the candidate's accuracy, where there is a floor.
        note: What a reader must know beside the numbers, empty when nothing.
        factors_met: The differing factors that the row's scored tokens met.
        blind: Met none of the differing factors: shown, and left out of every decision.
        counted: Whether its items enter the suite and the pooled row.
    """

    scope: str
    suite: str = ""
    family: str = ""
    metric: str = ""
    unit: str = ""
    better: str = "higher"
    through: str = ""
    items: int
    n: int
    lost: int
    gained: int
    baseline_right: int | None
    errors_baseline: int
    errors_candidate: int
    method: str = ""
    baseline_value: float | None = None
    candidate_value: float | None = None
    drop: float | None = None
    p: float | None = None
    p_mid: float | None = None
    p_adjusted: float | None = None
    flagged: bool = False
    lower: float | None = None
    upper: float | None = None
    interval: tuple[float, float] | None = None
    newcombe: tuple[float, float] | None = None
    clusters: int | None = None
    few_clusters: bool = False
    margin: float | None = None
    floor: float | None = None
    candidate_bounds: tuple[float, float] | None = None
    verdict: str | None = None
    severity: str | None = None
    drop_detected: bool = False
    saturated: bool = False
    more_items: int | None = None
    note: str = ""
    factors_met: tuple[str, ...] = ()
    blind: bool = False
    counted: bool = True

    @property
    def discordance(self) -> float | None:
        """Share of items that flipped either way."""
        return (self.lost + self.gained) / self.n if self.n else None

    @property
    def label(self) -> str:
        """How the row is named in text."""
        if self.scope == "pooled":
            return "all suites pooled"
        name = f"{self.suite}/{self.family}" if self.family else f"suite {self.suite}"
        return name + (f", {self.metric}" if self.metric else "") + (f" through {self.through}" if self.through else "")

    @property
    def short_p(self) -> float | None:
        """The p of tables: after correction where there is one."""
        return self.p if self.p_adjusted is None else self.p_adjusted

    def amount(self, value: float | None) -> str:
        """A drop or a bound in the row's unit, for tables; empty when there is none."""
        if value is None:
            return ""
        if not isfinite(value):
            return "none"
        return f"{value + 0.0:.4g}" if self.unit else format_points(value)

    @property
    def limit(self) -> str:
        """The margin in the row's unit, as short as it was typed."""
        if self.margin is None:
            return ""
        return f"{self.margin:.6g}" if self.unit else format_margin(self.margin)

    def numbers(self, alpha: float) -> str:
        """Counts, drop, interval, margin and p as text, in points or the metric's own units."""
        if self.drop is None or self.upper is None or self.interval is None or self.p is None:
            return f"no item was scored in both arms, of {self.items:,}"
        low, high = (self.amount(bound) for bound in self.interval)
        bounds = f"{100 * (1 - alpha):g} % [{low}, {high}], upper bound {self.amount(self.upper)}"
        counts = f"lost {self.lost:,}, gained {self.gained:,} of {self.n:,}"
        drop = f"drop {self.amount(self.drop)} points"
        if self.unit:
            counts = f"worse on {self.lost:,}, better on {self.gained:,} of {self.n:,}"
            change = f"{self.amount(self.baseline_value)} to {self.amount(self.candidate_value)}"
            drop = f"{self.unit} {change} ({self.better} is better), worse by {self.amount(self.drop)}"
        parts = [
            counts,
            f"{drop}, {bounds}",
            *([f"margin {self.limit}"] if self.margin is not None else []),
            f"one-sided {self._test} {format_p(self.p, sign=True)}{self._after_correction}",
            *([self.floor_text] if self.floor_text else []),
        ]
        if self.few_clusters:
            these = "this prefix" if self.clusters == 1 else f"these {self.clusters} prefixes"
            parts.append(f"conditional on {these} (or whatever its items share)")
        return "; ".join(parts)

    @property
    def floor_text(self) -> str:
        """The candidate's accuracy and its floor, in points; empty without one."""
        if self.floor is None or self.candidate_bounds is None or self.candidate_value is None:
            return ""
        low, high = map(format_points, self.candidate_bounds)
        return f"candidate {format_points(self.candidate_value)} [{low}, {high}], floor {format_margin(self.floor)}"

    @property
    def remark(self) -> str:
        """What stands beside the verdict word, in few words; empty when nothing."""
        if self.note:
            return self.note.split(":")[0]
        if self.severity:
            return self.severity
        if self.flagged:
            return "flagged"
        return "drop detected" if self.drop_detected else "saturated" if self.saturated else ""

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON: proportions become points, with `_points` in their keys.

        Of a metric in units of its own those are null, and `in_units` holds drop, bounds and margin.
        """
        document = {_JSON_NAMES.get(name, name): getattr(self, name) for name in self.__dataclass_fields__}
        document["discordance"] = self.discordance
        own = {name: document.pop(name) for name in _IN_POINTS}
        document |= {f"{name}_points": None if self.unit else _points(value) for name, value in own.items()}
        document |= {f"{name}_points": _points(document.pop(name)) for name in _ONLY_POINTS}
        document["in_units"] = own if self.unit else None
        document["unit"] = self.unit or "points"
        return {**plain_json(document), "remark": self.remark}

    @property
    def _test(self) -> str:
        """By its name; items of one cluster are compared as independent ones, given that cluster."""
        name = next((name for start, name in _TESTS.items() if self.method.startswith(start)), "exact")
        if self.clusters is None or self.clusters == 1:
            return f"{name} p"
        return f"{'sequential ' * (name == 'sequential')}p over {self.clusters} clusters"

    @property
    def _after_correction(self) -> str:
        if self.p is None or self.p_adjusted is None or self.p_adjusted <= self.p:
            return ""
        by = "Benjamini-Hochberg" if self.scope == "family" else "Holm"
        return f" ({format_p(self.p_adjusted)} after {by})"


def plain_json(value: Any) -> Any:
    """Lists and dicts alone; a number that JSON has no form for (a bound that nothing sets) becomes null."""
    if isinstance(value, dict):
        return {key: plain_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _points(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_points(bound) for bound in value]
    return None if value is None else 100 * value


def format_points(proportion: float) -> str:
    """A proportion in points with two decimals, never `-0.00`."""
    return f"{round(100 * proportion, 2) + 0.0:.2f}"


def format_margin(proportion: float) -> str:
    """A margin in points, as short as it was typed."""
    return f"{round(100 * proportion, 6):.1f}" if round(1000 * proportion, 5) % 1 == 0 else f"{100 * proportion:.6g}"


def format_p(p: float, *, sign: bool = False) -> str:
    """A p value without its leading zero, with two significant digits; `sign` puts `=` or `<` before it."""
    if p < 0.0001:
        return "< .0001"
    if p >= 0.9995:
        text = "1.0"
    else:
        text = f"{p:.4f}" if p < 0.01 else f"{p:.3f}"
        text = text.lstrip("0")
    return f"= {text}" if sign else text
