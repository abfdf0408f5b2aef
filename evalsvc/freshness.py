"""Whether a stored baseline still stands for what is deployed, and its fresh run beside a candidate if not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from evalsvc.evidence import check_aa
from evalsvc.limits import Standing
from evalsvc.policy import Policy
from evalsvc.row import format_points
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store

DAY_S = 86400
_UNITS = ((DAY_S, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True)
class Stands:
    """Which arm a candidate is compared with.

    Attributes:
        arm: The baseline that was named, or its fresh run beside the candidate.
        notes: Why it is another one than was named, and how the two compare.
        faults: Why nothing can be decided.
    """

    arm: ArmRecord
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def stands(store: Store, baseline: ArmRecord, candidate: ArmRecord, policy: Policy) -> Stands:
    """Applies a policy's rule about the baseline.

    Ages are from run to run, not from today, so that a decision stays what it was. A baseline of the candidate's own
    run is fresh by itself, unless it holds answers that were copied: those are as old as they are.
    """
    rule = policy.baseline
    if rule is None or (baseline.run_id == candidate.run_id and not baseline.details.get("reused")):
        return Stands(baseline)
    times = queries.begun(store)
    measured, needed = queries.measured_at(store, baseline, times[baseline.run_id]), times[candidate.run_id]
    reasons = list(stale(rule, baseline.details, measured, candidate.details, needed))
    if not reasons and rule.fresh != "always":
        return Stands(baseline)
    why = f"is stale: {'; '.join(reasons)}" if reasons else "has to be run again beside the candidate"
    alike = [] if rule.fresh == "never" else list(_alike(store, baseline, candidate))
    again = next((arm for arm in alike if _is_fresh(store, rule, arm, candidate, needed)), None)
    if again is None:
        remedy = (
            f"run {candidate.run_id}, the candidate's, has no arm with the baseline's plan and checkpoints that could "
            "stand in; run baseline and candidate in one experiment"
        )
        if rule.fresh == "never":
            remedy = "promote a newer one"
        elif alike:
            remedy = f"{alike[0].address} holds answers that were copied; `evalsvc run FILE --new` computes them"
        return Stands(baseline, faults=(f"baseline {baseline.address} {why}; {remedy}",))
    said = f"baseline {baseline.address} {why}: compared with its fresh run {again.address}"
    return Stands(again, notes=(said, *_drift(store, baseline, again)))


def stale(
    rule: Standing, held: Mapping[str, Any], measured_at: str, wanted: Mapping[str, Any], needed_at: str
) -> Iterator[str]:
    """Why a baseline no longer stands; nothing where it does.

    Args:
        rule: The policy's.
        held: Details of the baseline.
        measured_at: When its run began, ISO 8601.
        wanted: Details of what it is to be compared with.
        needed_at: When that one's run began.
    """
    age_s = (datetime.fromisoformat(needed_at) - datetime.fromisoformat(measured_at)).total_seconds()
    if rule.max_age_days is not None and age_s > rule.max_age_days * DAY_S:
        age, most = _durations(age_s, rule.max_age_days * DAY_S)
        yield f"measured {age} before the candidate, the policy accepts {most}"
    for key in rule.same:
        if held.get(key) is None or held.get(key) != wanted.get(key):  # what nobody knows is not the same
            yield f"its {key} is {_short(held.get(key))} and the candidate's {_short(wanted.get(key))}"


def _durations(*seconds: float) -> list[str]:
    """Durations in units that people use, with as many digits as tell them apart."""
    tried = ([_duration(each, digits) for each in seconds] for digits in range(3, 12))
    return next((texts for texts in tried if len(set(texts)) == len(seconds)), [f"{each} s" for each in seconds])


def _duration(seconds: float, digits: int) -> str:
    size, unit = next(((s, unit) for s, unit in _UNITS if seconds >= s), _UNITS[-1])
    value = seconds / size
    amount = f"{value:.{digits}g}" if value < 1000 else f"{value:,.0f}"
    return f"{amount} {unit}" + "s" * (amount != "1")


def _alike(store: Store, baseline: ArmRecord, candidate: ArmRecord) -> Iterator[ArmRecord]:
    """Arms of the same plan on the same checkpoints in the candidate's run; engine and machine may be others."""
    for arm in queries.arms(store, candidate.run_id):
        if arm.id != candidate.id and not arm.injected and (arm.plan, arm.stages) == (baseline.plan, baseline.stages):
            yield arm


def _is_fresh(store: Store, rule: Standing, arm: ArmRecord, candidate: ArmRecord, needed: str) -> bool:
    """Whether an arm of the candidate's run may stand in: it was computed there, or what it copied is not stale."""
    if not arm.details.get("reused"):
        return True
    measured = queries.measured_at(store, arm, needed)
    return rule.fresh != "always" and not any(stale(rule, arm.details, measured, candidate.details, needed))


def _drift(store: Store, baseline: ArmRecord, again: ArmRecord) -> Iterator[str]:
    """How the fresh run compares with the one that was named."""
    found = check_aa(queries.pairs(store, baseline, again), again.address)
    if found is not None and found.n:
        drop = format_points((found.lost - found.gained) / found.n)
        flips = f"lost {found.lost}, gained {found.gained} of {found.n:,} (drop {drop} points)"
        yield f"{again.address} against {baseline.address}: {flips}"


def _short(value: Any) -> str:
    text = "not known" if value is None else str(value)
    return text if len(text) <= 24 else text[:12] + "…"
