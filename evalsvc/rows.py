"""The rows of one candidate's table: families described, and every claim with its verdict."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evalsvc.claims import POOLED, Claim, Key
from evalsvc.evidence import count_once, in_order, seen_factors
from evalsvc.ordering import Looks
from evalsvc.policy import Policy
from evalsvc.reading import OWN, measure_pairs, own_reading
from evalsvc.release import Judged
from evalsvc.row import Row
from evalsvc.store.records import Pair
from evalsvc.verdict.measure import Measurement
from evalsvc.verdict.rule import Verdict

_MEASURED = ("method", "drop", "p", "p_mid", "lower", "upper", "interval", "newcombe", "clusters", "few_clusters")


def describe_families(
    pairs: Sequence[Pair], differing: Sequence[str], policy: Policy, looks: Looks | None
) -> list[Row]:
    """A row for each suite, family and stage that scored, without a verdict.

    Args:
        pairs: All items, both stages' rows.
        differing: Factors in which the arms differ.
        policy: Alpha, and which metrics are in units of their own.
        looks: Where a sequential design looked; None for the fixed one.
    """
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[(pair.suite, pair.family, pair.through)].append(pair)
    chosen = {id(pair) for pair in count_once(pairs, differing)}
    rows = []
    for (suite, family, through), members in sorted(groups.items()):
        seen, counted = seen_factors(members, differing), any(id(pair) in chosen for pair in members)
        readings = {own_reading(pair, policy) for pair in members}
        reading = readings.pop() if len(readings) == 1 else OWN
        row = Row(
            scope="family",
            suite=suite,
            family=family,
            through=through,
            unit=members[0].metric if reading.in_units else "",
            better=reading.better,
            factors_met=seen,
            blind=bool(differing) and not seen,
            counted=counted,
            note="" if counted else "not counted: its items count in another row",
            **_answered(members),
        )
        rows.append(with_numbers(row, measure_pairs(members, policy.alpha, looks=looks, reading=reading)))
    return rows


def _answered(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Items and errors; the rest is of what was measured, if anything was."""
    return {
        "items": len(pairs),
        "n": 0,
        "lost": 0,
        "gained": 0,
        "baseline_right": 0,
        "errors_baseline": sum(p.baseline is not None and p.baseline.status != "scored" for p in pairs),
        "errors_candidate": sum(p.candidate is not None and p.candidate.status != "scored" for p in pairs),
    }


def with_numbers(row: Row, measured: Measurement | None) -> Row:
    """A row with what was measured of it."""
    if measured is None:
        return row
    return replace(
        row,
        n=measured.n,
        baseline_right=measured.baseline_right,
        lost=measured.lost,
        gained=measured.gained,
        baseline_value=measured.baseline_mean,
        candidate_value=measured.candidate_mean,
        **{name: getattr(measured, name) for name in _MEASURED},
    )


def with_verdict(row: Row, verdict: Verdict) -> Row:
    """A row with its word and all that belongs to it."""
    return replace(
        row,
        p_adjusted=verdict.p,
        margin=verdict.margin,
        verdict=verdict.word,
        severity=verdict.severity,
        drop_detected=verdict.drop_detected,
        saturated=verdict.saturated,
        more_items=verdict.more_items,
    )


def verdict_row(
    claim: Claim,
    families: Sequence[Row],
    seen: Mapping[Key, Judged],
    worst: Mapping[Key, Judged],
    faulty: bool,
) -> Row:
    """The row of a claim.

    Args:
        claim: What was tested.
        families: Descriptions of all families, for the factors that the claim's items met.
        seen: What was judged.
        worst: The same with unanswered items against the candidate.
        faulty: Whether the evidence can carry no verdict at all.
    """
    key = claim.key
    mine = [row for row in families if row.counted and not row.blind and _is_part_of(row, key)]
    met = {factor for row in mine for factor in row.factors_met}
    row = Row(
        scope=claim.scope,
        suite=key.suite,
        family=key.family,
        metric=key.metric,
        unit=key.metric if claim.reading.in_units else "",
        better=claim.reading.better,
        factors_met=in_order(met),
        **_answered(claim.pairs),
    )
    if key not in seen:
        blind = bool(families) and not mine
        return replace(row, verdict="INVALID", blind=blind, counted=False, note="blind" if blind else "no samples")
    return _judged(with_numbers(row, seen[key].measured), key, claim, seen, worst, faulty)


def _is_part_of(row: Row, key: Key) -> bool:
    return key == POOLED or (key.suite == row.suite and key.family in ("", row.family))


def _judged(
    row: Row, key: Key, claim: Claim, seen: Mapping[Key, Judged], worst: Mapping[Key, Judged], faulty: bool
) -> Row:
    judged = seen[key]
    verdict = judged.verdict
    row = replace(row, p_adjusted=judged.p_adjusted, flagged=judged.flagged and not faulty)
    if verdict is None:
        return row
    word, note, other = verdict.word, "", worst[key].verdict
    if verdict.floor:
        note = "floor: the baseline is so low that it cannot lose the margin"
    if word != "INVALID" and other is not None and other.word != word:
        became = f"become {other.word}" if other.word != "INCONCLUSIVE" else f"take away its {word}"
        word, note = "INCONCLUSIVE", f"unanswered items: could {became}"
    row = replace(with_verdict(row, verdict), p_adjusted=judged.p_adjusted, note=note)
    row = replace(row, floor=claim.floor, candidate_bounds=judged.accuracy)
    if faulty or word != verdict.word:  # what belonged to the other word goes with it
        word = "INVALID" if faulty else word
        row = replace(row, verdict=word, severity=None, drop_detected=False, more_items=None)
    return row


def guarded_families(
    families: Sequence[Row],
    claims: Sequence[Claim],
    seen: Mapping[Key, Judged],
    worst: Mapping[Key, Judged],
    faulty: bool,
) -> list[Row]:
    """Descriptions of families, with the correction inside their suite, and a verdict where a rule guards them."""
    known = {claim.key: claim for claim in claims if claim.scope == "family"}
    rows = []
    for row in families:
        claim = known.get(Key(row.suite, row.family))
        if claim is not None and claim.key in seen and row.counted and not row.blind:
            row = _judged(row, claim.key, claim, seen, worst, faulty)
        rows.append(row)
    return rows


def in_table_order(verdicts: Mapping[Key, Row], families: Sequence[Row]) -> list[Row]:
    """Pooled, then each suite followed by its metrics and its families."""
    ordered = [verdicts[POOLED]] if POOLED in verdicts else []
    for suite in sorted({row.suite for row in families} | {key.suite for key in verdicts} - {POOLED.suite}):
        ordered += [row for key, row in verdicts.items() if key == Key(suite)]
        ordered += [row for key, row in verdicts.items() if key.suite == suite and key.metric]
        ordered += [row for row in families if row.suite == suite]
    return ordered
