"""One arm's drop over its runs, each against one frozen baseline: where its level changed, and what changed with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsvc.errors import EvidenceError
from evalsvc.evidence import average_repeats, counted_by_suite, differing_factors, find_faults
from evalsvc.policy import Policy
from evalsvc.reading import measure_pairs
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store
from evalsvc.verdict.history import ChangePoint, change_points


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of the arm.

    Attributes:
        address: The arm in that run.
        created_at: When the run began, ISO 8601 in UTC.
        n: Items scored in both arms.
        lost: Of them right in the baseline only.
        gained: Of them right in the arm only.
        drop: Pooled over all suites, each item once; None where the run cannot be compared, and `fault` says why.
        interval: Two-sided 95 % interval of the drop.
        changed: Settings of the arm that differ from those in the run before, as `key: old -> new`.
        change: The change point that begins here, where one does.
    """

    address: str
    created_at: str
    n: int = 0
    lost: int = 0
    gained: int = 0
    drop: float | None = None
    interval: tuple[float, float] | None = None
    fault: str = ""
    changed: tuple[str, ...] = ()
    change: ChangePoint | None = None


def history(store: Store, baseline: ArmRecord, name: str, *, alpha: float = 0.05) -> list[Point]:
    """The series of an arm, oldest run first, with its change points: an alert, never a verdict.

    Args:
        store: Where the runs are.
        baseline: What every run is compared with.
        name: The arm's name in the runs.
        alpha: A level changes where the permutation p of a split is at most this.

    Raises:
        EvidenceError: No finished run has this arm.
    """
    times = {run.id: run.created_at for run in queries.runs(store)}
    arms = arms_of(store, baseline, name)
    points = [
        point_of(store, baseline, arm, times[arm.run_id], changes_since(before, arm))
        for before, arm in zip([None, *arms], arms, strict=False)
    ]
    return with_change_points(points, alpha=alpha)


def arms_of(store: Store, baseline: ArmRecord, name: str) -> list[ArmRecord]:
    """The finished arms of a name, oldest run first, the baseline itself left out.

    Raises:
        EvidenceError: There is none.
    """
    arms = [
        arm
        for arm in queries.arms(store)
        if arm.name == name and arm.run_kind == "main" and arm.status == "finished" and arm.id != baseline.id
    ]
    if not arms:
        raise EvidenceError(f"{store.name}: no finished run has an arm '{name}' beside {baseline.address}")
    return arms


def with_change_points(found: Sequence[Point], *, alpha: float = 0.05) -> list[Point]:
    """The same points, those where the level changes marked."""
    points = list(found)
    usable = [i for i, point in enumerate(points) if point.drop is not None]
    series = [points[i].drop or 0.0 for i in usable]
    for change in change_points(series, np.random.default_rng(0), alpha=alpha):
        at = usable[change.index]
        points[at] = Point(**{**vars(points[at]), "change": change})
    return points


def point_of(store: Store, baseline: ArmRecord, arm: ArmRecord, created_at: str, changed: tuple[str, ...]) -> Point:
    """One run of the arm against the baseline.

    Args:
        store: Where both are.
        baseline: What it is compared with.
        arm: The arm in its run.
        created_at: When that run began.
        changed: Settings that differ from the run before.
    """
    blank = {"address": arm.address, "created_at": created_at, "changed": changed}
    pairs = queries.pairs(store, baseline, arm)
    faults = find_faults(baseline, arm, pairs, Policy(name="history", proof="declared", rendering="may_differ"))
    if faults:
        return Point(**blank, fault=faults[0])
    counted = counted_by_suite(average_repeats(pairs), differing_factors(baseline, arm))
    measured = measure_pairs([pair for members in counted.values() for pair in members], 0.05)
    if measured is None:
        return Point(**blank, fault="no counted item met a factor in which the arms differ")
    numbers = {field: getattr(measured, field) for field in ("n", "lost", "gained", "drop", "interval")}
    return Point(**blank, **numbers)


def changes_since(before: ArmRecord | None, arm: ArmRecord) -> tuple[str, ...]:
    """Settings of an arm that differ from those in the run before, as `key: old -> new`; none without one."""
    return () if before is None else tuple(_changes(before, arm))


def _changes(before: ArmRecord, arm: ArmRecord) -> Iterator[str]:
    old, new = _settings(before), _settings(arm)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key}: {_short(old.get(key))} -> {_short(new.get(key))}"
    if old == new and before.fingerprint != arm.fingerprint:
        yield "fingerprint, by something that is not stored"


def _settings(arm: ArmRecord) -> dict[str, Any]:
    stages = {f"{stage}.{key}": value for stage, held in arm.stages.items() for key, value in held.items()}
    details = {key: value for key, value in arm.details.items() if key not in ("note", "stopped", "reused")}
    return {"plan": arm.plan, **stages, **details, **arm.injected}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "…"
