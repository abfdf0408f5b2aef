"""From measured claims to one word: Holm over a candidate's tests, the release rule, unanswered items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evalsvc.budgets import LimitResult
from evalsvc.claims import POOLED, Claim, Key
from evalsvc.ordering import Looks
from evalsvc.policy import Policy
from evalsvc.reading import measure_pairs, read_pair, read_side
from evalsvc.row import Row
from evalsvc.verdict.families import gatekeep, holm
from evalsvc.verdict.floor import accuracy_bounds
from evalsvc.verdict.measure import Measurement
from evalsvc.verdict.rule import BELOW_FLOOR, BEYOND_MARGIN, Verdict, decide

_SEVERITIES = (BELOW_FLOOR, BEYOND_MARGIN)  # named first where rows differ


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim's measurement and its verdict before unanswered items are considered.

    Attributes:
        measured: Counts, p and bounds.
        verdict: Under the claim's margin and floor; None where it has none.
        p_adjusted: After Holm, or for a family after Benjamini-Hochberg; None for families of a suite that stands.
        flagged: A family whose drop is real, inside a suite whose drop is.
        accuracy: Bounds of the candidate's accuracy, where the claim has a floor.
    """

    measured: Measurement
    verdict: Verdict | None
    p_adjusted: float | None
    flagged: bool = False
    accuracy: tuple[float, float] | None = None


def family_size(suites: int) -> int:
    """Tests of a release: its suites and the pooled row, which for one suite is the same test and not a second one."""
    return 1 if suites == 1 else suites + 1


def judge(
    claims: Sequence[Claim], policy: Policy, *, worst: bool = False, looks: Looks | None = None
) -> dict[Key, Judged]:
    """Measures and decides every claim that has items.

    Holm runs over the pooled row, the suites and the metrics. Families are Benjamini-Hochberg's inside their suite, and
    only once that suite is rejected. Floors share alpha among them.

    Args:
        claims: Of one candidate.
        policy: Alpha and margins.
        worst: Counts missing candidate items as lost and missing baseline items as right.
        looks: Where a sequential design looked; None for the fixed one.
    """
    measured: dict[Key, Measurement] = {}
    for claim in claims:
        found = measure_pairs(claim.pairs, policy.alpha, worst=worst, looks=looks, reading=claim.reading)
        if found is not None:
            measured[claim.key] = found
    known = [claim for claim in claims if claim.key in measured]
    adjusted: dict[Key, float | None] = dict(
        adjust({claim.key: measured[claim.key].p for claim in known if claim.scope != "family"})
    )
    for suite in [claim.key for claim in known if claim.scope == "suite"]:
        inside = {claim.key: measured[claim.key].p for claim in known if _is_family_of(claim, suite)}
        gated = gatekeep((adjusted[suite] or 0.0) < policy.alpha, {key.family: p for key, p in inside.items()})
        adjusted |= {key: gated[key.family] for key in inside}
    floors = max(1, sum(claim.floor is not None for claim in known))
    return {
        claim.key: _judged(claim, measured[claim.key], adjusted[claim.key], policy, policy.alpha / floors, worst)
        for claim in known
    }


def _is_family_of(claim: Claim, suite: Key) -> bool:
    return claim.scope == "family" and claim.key.suite == suite.suite


def adjust(p: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's p over a candidate's tests. With a single suite the pooled row is that suite's test, not a second one."""
    suites = [key for key in p if key != POOLED and not key.metric]
    distinct = [key for key in p if key != POOLED or len(suites) != 1]
    adjusted = dict(zip(distinct, holm([p[key] for key in distinct]), strict=True))
    return {key: adjusted[suites[0]] if key not in adjusted else adjusted[key] for key in p}


def _judged(
    claim: Claim, measured: Measurement, p: float | None, policy: Policy, floor_alpha: float, worst: bool
) -> Judged:
    flagged = claim.scope == "family" and p is not None and p < measured.alpha
    if claim.margin is None:
        return Judged(measured=measured, verdict=None, p_adjusted=p, flagged=flagged)
    chance = None if claim.reading.in_units else sum(pair.chance for pair in claim.pairs) / len(claim.pairs)
    verdict = decide(measured, claim.margin, p_adjusted=1.0 if p is None else p, chance=chance)
    accuracy = None
    if worst and claim.reading.in_units and verdict.word == "PASS" and _unread(claim):
        verdict = replace(verdict, word="INCONCLUSIVE")  # no value is the worst one
    if claim.floor is not None:
        accuracy = _candidate_accuracy(claim, floor_alpha, worst)
        if accuracy[1] < claim.floor and verdict.word != "INVALID":
            verdict = Verdict(word="REGRESSED", margin=claim.margin, p=verdict.p, severity=BELOW_FLOOR)
        elif accuracy[0] < claim.floor and verdict.word == "PASS" and policy.guards == "strict":
            verdict = replace(verdict, word="INCONCLUSIVE", drop_detected=False)
    return Judged(measured=measured, verdict=verdict, p_adjusted=p, flagged=flagged, accuracy=accuracy)


def _unread(claim: Claim) -> bool:
    return any(read_pair(pair, claim.reading) is None for pair in claim.pairs)


def _candidate_accuracy(claim: Claim, alpha: float, worst: bool) -> tuple[float, float]:
    values, labels = [], []
    for pair in claim.pairs:
        value = read_side(pair.candidate, claim.reading, pair.metric)
        if worst or read_pair(pair, claim.reading) is not None:
            values.append(0.0 if value is None else value)
            labels.append("\x1f".join((pair.family, pair.cluster)) if pair.cluster else "")
    return accuracy_bounds(values, labels, alpha=alpha)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The release's word; `deciding` are the keys of the rows that led to it."""

    word: str
    severity: str | None = None
    reasons: Sequence[str] = ()
    notes: Sequence[str] = ()
    deciding: Sequence[Key] = ()


def release(
    rows: Mapping[Key, Row],
    seen: Mapping[Key, Judged],
    worst: Mapping[Key, Judged],
    policy: Policy,
    faults: Sequence[str],
    same_arm: bool,
) -> Outcome:
    """Run-level faults, then REGRESSED, then a suite that can carry no verdict, then INCONCLUSIVE, then PASS."""
    if faults:
        return Outcome(word="INVALID", reasons=faults)
    words = words_of(seen)
    word = release_word(words, policy)
    notes = [note for key in words for note in _not_proven(rows[key])]
    imputed = release_word(words_of(worst), policy)
    if word != "INVALID" and imputed != word:
        reason = f"items without an answer could change the verdict from {word} to {imputed}"
        return Outcome(word="INCONCLUSIVE", reasons=[reason], notes=notes)
    deciding = [key for key, found in words.items() if found == word] or list(rows)[:1]
    if word == "PASS" and POOLED in words:
        deciding = [POOLED]
    if word == "REGRESSED" and same_arm:
        reason = "an arm differs from itself by more than chance at alpha: noise of the instrument, no regression"
        return Outcome(word="INCONCLUSIVE", reasons=[reason], notes=notes, deciding=deciding)
    reasons = [f"{rows[key].label}: {rows[key].note or rows[key].numbers(policy.alpha)}" for key in deciding]
    severities = {rows[key].severity for key in deciding} - {None}
    severity = next((s for s in _SEVERITIES if s in severities), next(iter(severities), None))
    return Outcome(
        word=word, severity=severity if word == "REGRESSED" else None, reasons=reasons, notes=notes, deciding=deciding
    )


def with_limits(outcome: Outcome, limits: Sequence[LimitResult]) -> Outcome:
    """The release's word once limits beside the margins are held against it, by the same precedence."""
    for word in ("INVALID", "REGRESSED", "INCONCLUSIVE"):
        broken = [limit for limit in limits if limit.word == word]
        if outcome.word == word or broken:
            held = outcome.reasons if outcome.word == word else ()
            severity = outcome.severity if outcome.word == word else None
            if word == "REGRESSED" and severity is None:
                severity = broken[0].severity
            reasons = [*held, *(limit.reason for limit in broken)]
            return replace(outcome, word=word, severity=severity, reasons=reasons)
    return outcome


def _not_proven(row: Row) -> list[str]:
    """What a suite, metric or family has not shown; the pooled row's own verdict says it."""
    missed = row.floor is not None and row.candidate_bounds is not None and row.candidate_bounds[0] < row.floor
    notes = [f"floor not proven: {row.label} ({row.floor_text})"] if missed and row.verdict != "REGRESSED" else []
    if row.verdict == "INCONCLUSIVE" and row.scope != "pooled" and not (notes and _within(row)):
        notes.append(f"guard not proven: {row.label} (bound {row.amount(row.upper)}, margin {row.limit})")
    return notes


def _within(row: Row) -> bool:
    return row.upper is not None and row.margin is not None and row.upper <= row.margin


def words_of(judged: Mapping[Key, Judged]) -> dict[Key, str]:
    """The word of each claim that carries one."""
    return {key: one.verdict.word for key, one in judged.items() if one.verdict is not None}


def release_word(words: Mapping[Key, str], policy: Policy) -> str:
    """The release's word from those of the pooled row (under `POOLED`) and all others.

    Without a pooled row (all metrics are in units of their own) every other row has to PASS.
    """
    others = [word for key, word in words.items() if key != POOLED]
    for word in ("REGRESSED", "INVALID"):
        if word in words.values():
            return word
    if not words or words.get(POOLED) == "INCONCLUSIVE":
        return "INCONCLUSIVE" if words else "INVALID"
    strict = policy.guards == "strict" or POOLED not in words
    return "INCONCLUSIVE" if strict and "INCONCLUSIVE" in others else "PASS"
