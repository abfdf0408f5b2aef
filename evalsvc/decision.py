"""The one object that a gate's exit code, JSON, table and sentence are printed from. Proportions inside."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from evalsvc.errors import EXIT_ERROR, EXIT_INCONCLUSIVE, EXIT_INVALID, EXIT_PASS, EXIT_REGRESSED
from evalsvc.store.records import ArmRecord

SCHEMA = "evalsvc.decision/1"
EXIT_CODES = {
    "PASS": EXIT_PASS,
    "REGRESSED": EXIT_REGRESSED,
    "INCONCLUSIVE": EXIT_INCONCLUSIVE,
    "INVALID": EXIT_INVALID,
}
_JSON_NAMES = {"scope": "level", "lost": "b", "gained": "c"}
_IN_POINTS = ("drop", "lower", "upper", "interval", "newcombe", "margin")
_PRECEDENCE = (EXIT_ERROR, EXIT_INVALID, EXIT_REGRESSED, EXIT_INCONCLUSIVE, EXIT_PASS)


def combine_exit_codes(codes: Iterable[int]) -> int:
    """The exit code of several candidates: the first of 2, 4, 1, 3, 0 that occurs; 2 for none or for a stranger."""
    given = set(codes)
    if not given or given - set(_PRECEDENCE):
        return EXIT_ERROR
    return next(code for code in _PRECEDENCE if code in given)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        scope: `pooled` and `suite` rows carry a verdict, `family` rows describe.
        through: Stage that was asked for the scored logits, in family rows; empty for generations.
        items: Items of the row, answered or not.
        n: Items scored in both arms; everything that follows is about these. Numbers are None when there are none.
        method: Test and bound that decide.
        p: One-sided p against "no drop".
        p_adjusted: After Holm over the suites and the pooled row; None in family rows.
        interval: Two-sided at 1 - alpha.
        clusters: Clusters where they decide; None where items are independent.
        note: What a reader must know beside the numbers, empty when nothing.
        factors_met: The differing factors that the row's scored tokens met.
        blind: Met none of the differing factors: shown, and left out of every decision.
        counted: Whether its items enter the suite and the pooled row.
    """

    scope: str
    suite: str = ""
    family: str = ""
    through: str = ""
    items: int
    n: int
    lost: int
    gained: int
    baseline_right: int | None
    errors_baseline: int
    errors_candidate: int
    method: str = ""
    drop: float | None = None
    p: float | None = None
    p_mid: float | None = None
    p_adjusted: float | None = None
    lower: float | None = None
    upper: float | None = None
    interval: tuple[float, float] | None = None
    newcombe: tuple[float, float] | None = None
    clusters: int | None = None
    few_clusters: bool = False
    margin: float | None = None
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
    def label(self) -> str:
        """How the row is named in text."""
        if self.scope == "pooled":
            return "all suites pooled"
        if self.scope == "suite":
            return f"suite {self.suite}"
        return f"{self.suite}/{self.family}" + (f" through {self.through}" if self.through else "")

    def numbers(self, alpha: float) -> str:
        """Counts, drop, interval, margin and p as text, in points."""
        if self.drop is None or self.upper is None or self.interval is None or self.p is None:
            return f"no item was scored in both arms, of {self.items:,}"
        low, high = (format_points(bound) for bound in self.interval)
        name = "sign-flip p" if self.method.startswith("sign-flip") else "exact p"
        test = name if self.clusters is None else f"p over {self.clusters} cluster{'s' * (self.clusters != 1)}"
        parts = [
            f"lost {self.lost:,}, gained {self.gained:,} of {self.n:,}",
            f"drop {format_points(self.drop)} points, {100 * (1 - alpha):g} % [{low}, {high}], "
            f"upper bound {format_points(self.upper)}",
            *([f"margin {format_margin(self.margin)}"] if self.margin is not None else []),
            f"one-sided {test} {format_p(self.p, sign=True)}{self._after_holm}",
        ]
        if self.few_clusters:
            these = "this prefix" if self.clusters == 1 else f"these {self.clusters} prefixes"
            parts.append(f"conditional on {these} (or whatever its items share)")
        return "; ".join(parts)

    @property
    def remark(self) -> str:
        """What stands beside the verdict word, in few words; empty when nothing."""
        if self.note:
            return self.note.split(":")[0]
        if self.severity:
            return self.severity
        return "drop detected" if self.drop_detected else "saturated" if self.saturated else ""

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON: proportions become points, with `_points` in their keys."""
        document = {_JSON_NAMES.get(name, name): getattr(self, name) for name in self.__dataclass_fields__}
        for name in _IN_POINTS:
            document[f"{name}_points"] = _points(document.pop(name))
        return {**_plain(document), "remark": self.remark}

    @property
    def _after_holm(self) -> str:
        if self.p is None or self.p_adjusted is None or self.p_adjusted <= self.p:
            return ""
        return f" ({format_p(self.p_adjusted)} after Holm)"


@dataclass(frozen=True, kw_only=True)
class ArmFace:
    """What a decision says of an arm."""

    address: str
    id: int
    run_id: int
    name: str
    fingerprint: str
    plan: str
    injected: dict[str, Any]
    proof_status: str | None

    @classmethod
    def of(cls, arm: ArmRecord) -> "ArmFace":
        """The face of a stored arm."""
        return cls(**{name: getattr(arm, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class AAResult:
    """The baseline against itself under another order and other batches: a check of the instrument, no verdict."""

    address: str
    n: int
    lost: int
    gained: int
    p: float
    p_gain: float

    @property
    def discordance(self) -> float:
        """Share of items that flipped though nothing differed."""
        return (self.lost + self.gained) / self.n

    @property
    def failed(self) -> bool:
        """Whether the instrument drifts in one direction: one-sided p < .01 either way."""
        return min(self.p, self.p_gain) < 0.01


@dataclass(frozen=True)
class Stop:
    """The look of a sequential design that decided about a candidate.

    Attributes:
        word: `REGRESSED` or `PASS`.
        items: Items up to that look, in the order in which they are asked.
        planned: Items in all.
        looks: Looks up to that one.
    """

    word: str
    items: int
    planned: int
    looks: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A policy applied to one candidate.

    Attributes:
        verdict: `PASS`, `REGRESSED`, `INCONCLUSIVE` or `INVALID`.
        severity: Of a REGRESSED.
        sentence: Why, in one sentence, in points.
        reasons: Each reason of the verdict on its own.
        notes: What a reader should know and what changed nothing.
        same_arm: One fingerprint in two runs: an A/A comparison, which can find no regression.
        differing_factors: Factors in which the arms' stages differ.
        uncovered_factors: Those that no counted row met.
        pairing_verified: Whether every pair's rendered tokens are known to be equal.
        stop: The look that decided, of a sequential design; None where none did, or the design is fixed.
        rows: Pooled, then each suite followed by its families.
    """

    verdict: str
    severity: str | None
    sentence: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    policy: dict[str, Any]
    policy_sha256: str
    baseline: ArmFace
    candidate: ArmFace
    same_arm: bool
    differing_factors: tuple[str, ...]
    uncovered_factors: tuple[str, ...]
    pairing_verified: bool
    aa: AAResult | None
    stop: Stop | None = None
    rows: tuple[Row, ...]

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 REGRESSED, 3 INCONCLUSIVE (0 where the policy accepts it), 4 INVALID."""
        if self.verdict == "INCONCLUSIVE" and self.policy.get("inconclusive") == "accept":
            return EXIT_PASS
        return EXIT_CODES[self.verdict]

    @property
    def alpha(self) -> float:
        """Error rate of each direction under the policy."""
        return self.policy["alpha"]

    def to_json(self) -> dict[str, Any]:
        """The decision as plain JSON, drops and bounds in points (their keys say so)."""
        document = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "rows"}
        document |= {"baseline": asdict(self.baseline), "candidate": asdict(self.candidate)}
        document |= {name: None if document[name] is None else asdict(document[name]) for name in ("aa", "stop")}
        rows = [row.to_json() for row in self.rows]
        return {"schema": SCHEMA, "exit_code": self.exit_code, **_plain(document), "rows": rows}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


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
