"""The one object that a gate's exit code, JSON, table and sentence are printed from. Proportions inside."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from evalsvc.budgets import LimitResult
from evalsvc.errors import EXIT_ERROR, EXIT_INCONCLUSIVE, EXIT_INVALID, EXIT_PASS, EXIT_REGRESSED
from evalsvc.row import Row, format_points, plain_json
from evalsvc.signals import SuiteSignal
from evalsvc.store.records import ArmRecord

SCHEMA = "evalsvc.decision/2"  # its JSON schema: schemas/decision.json
EXIT_CODES = {
    "PASS": EXIT_PASS,
    "REGRESSED": EXIT_REGRESSED,
    "INCONCLUSIVE": EXIT_INCONCLUSIVE,
    "INVALID": EXIT_INVALID,
}
_PRECEDENCE = (EXIT_ERROR, EXIT_INVALID, EXIT_REGRESSED, EXIT_INCONCLUSIVE, EXIT_PASS)


def combine_exit_codes(codes: Iterable[int]) -> int:
    """The exit code of several candidates: the first of 2, 4, 1, 3, 0 that occurs; 2 for none or for a stranger."""
    given = set(codes)
    if not given or given - set(_PRECEDENCE):
        return EXIT_ERROR
    return next(code for code in _PRECEDENCE if code in given)


def legend(decisions: Iterable["Decision"]) -> str:
    """What the columns of a table hold."""
    text = "drop, bound and margin in points; p one-sided, after Holm over the suites and the pooled row"
    rows = [row for decision in decisions for row in decision.rows]
    if any(row.metric for row in rows):
        text += " and the metrics"
    return text + ("; a metric with a margin in its own units in these" if any(row.unit for row in rows) else "")


@dataclass(frozen=True, kw_only=True)
class ArmFace:
    """What a decision says of an arm, and where it came from.

    Attributes:
        experiment_hash: Of everything that the run was asked.
        stages: Per stage formats, checkpoint hash, hash of scales, and fault.
        details: Hashes of tokenizer and calibration, engine version, device class, and whatever else the target knew.
    """

    address: str
    id: int
    run_id: int
    name: str
    fingerprint: str
    plan: str
    injected: dict[str, Any]
    proof_status: str | None
    experiment: str
    experiment_hash: str
    stages: dict[str, Any]
    details: dict[str, Any]

    @classmethod
    def of(cls, arm: ArmRecord) -> "ArmFace":
        """The face of a stored arm."""
        return cls(**{name: getattr(arm, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class AAResult:
    """An arm against itself under another order and other batches: a check of the instrument, no verdict.

    Attributes:
        address: The arm in its second run.
        of: The arm in its first run; empty where nobody said it.
        n: Items that it counts; 0 where none of those that were asked again can be.
        lost: Of them right in the first run only.
        gained: Of them right in the second run only.
        p: One-sided p against "nothing is lost", 1.0 without items.
        p_gain: The same in the other direction.
        left_out: Items that were asked again and are not counted: how many of each suite, and why.
    """

    address: str
    of: str = ""
    n: int
    lost: int
    gained: int
    p: float
    p_gain: float
    left_out: tuple[str, ...] = ()

    @property
    def discordance(self) -> float | None:
        """Share of items that flipped though nothing differed; None without items."""
        return (self.lost + self.gained) / self.n if self.n else None

    @property
    def in_words(self) -> str:
        """What was counted, and what was not, in points."""
        uncounted = "; ".join(self.left_out)
        if self.discordance is None:
            look = f"; `evalsvc agree {self.of} {self.address}` compares its answers" if self.of else ""
            return f"was run, and none of its items can be counted ({uncounted}){look}"
        counts = f"lost {self.lost:,}, gained {self.gained:,} of {self.n:,}"
        return f"{counts} (discordance {format_points(self.discordance)} points)" + (
            f"; not counted: {uncounted}" if uncounted else ""
        )

    @property
    def found(self) -> dict[str, float | bool | None]:
        """Discordance in points, and whether the check failed."""
        points = None if self.discordance is None else 100 * self.discordance
        return {"discordance_points": points, "failed": self.failed}

    def to_json(self) -> dict[str, Any]:
        """The check as plain JSON; its p are null where nothing is counted."""
        unknown = {} if self.n else {"p": None, "p_gain": None}
        return plain_json({**asdict(self), **unknown, **self.found})

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
        limits: Limits beside the margins: answers cut short, latency, throughput, capacity, cost.
        signals: What log-likelihoods of choices say beside right and wrong. Never a verdict.
        probe: Per stage the KL of the candidate's next-token distributions to the baseline's over a fixed text.
        rows: Pooled, then each suite followed by its metrics and families.
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
    limits: tuple[LimitResult, ...] = ()
    signals: tuple[SuiteSignal, ...] = ()
    probe: dict[str, Any] = field(default_factory=dict)
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

    @property
    def beside_the_sentence(self) -> tuple[str, ...]:
        """Further reasons, limits and notes, each once."""
        limits = (limit.in_words for limit in self.limits)
        broken = {limit.reason for limit in self.limits}
        further = (reason for reason in self.reasons[1:] if reason not in broken)
        return (*further, *limits, *self.notes)

    def to_json(self) -> dict[str, Any]:
        """The decision as plain JSON, drops and bounds in points (their keys say so)."""
        document = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "rows"}
        document |= {"baseline": asdict(self.baseline), "candidate": asdict(self.candidate)}
        document["stop"] = None if self.stop is None else asdict(self.stop)
        document["aa"] = None if self.aa is None else self.aa.to_json()
        document["limits"] = [asdict(limit) for limit in self.limits]
        document["signals"] = [asdict(signal) for signal in self.signals]
        rows = [row.to_json() for row in self.rows]
        head = {"schema": SCHEMA, "exit_code": self.exit_code, "alpha": self.alpha}
        return {**head, **plain_json(document), "rows": rows}
