"""One arm's drop over its runs, each against one frozen baseline: where its level changed, and what changed with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsvc.errors import ConfigError, EvidenceError
from evalsvc.series import OWN, POOLED, Measure, figures_of, unscored
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
        drop: Pooled over all suites, each item once, or of one suite; None where the run cannot be compared, and
            `fault` says why.
        interval: Two-sided 95 % interval of the drop.
        changed: Settings of the arm that differ from those in the run before, as `key: old -> new`.
        change: The change point that begins here, where one does.
        in_units: Drop, interval and levels are in units of the metric's own, not proportions.
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
    in_units: bool = False


def history(store: Store, baseline: ArmRecord, name: str, *, alpha: float = 0.05) -> list[Point]:
    """The series of an arm over all suites pooled; as `histories`."""
    return histories(store, baseline, name, alpha=alpha)[POOLED]


def histories(
    store: Store, baseline: ArmRecord, name: str, *, alpha: float = 0.05, measure: Measure = OWN
) -> dict[str, list[Point]]:
    """The series of an arm by suite, oldest run first, with their change points: alerts, never verdicts.

    Args:
        store: Where the runs are.
        baseline: What every run is compared with.
        name: The arm's name in the runs.
        alpha: A level changes where the permutation p of a split is at most this.
        measure: What is compared. Series of the items' own metric that were kept (`keep_series`) are not read again.

    Returns:
        By suite, and of all suites pooled under the empty name, unless the metric has units of its own.

    Raises:
        EvidenceError: No finished run has this arm.
        ConfigError: The measure names a metric that no run of it has.
    """
    arms = arms_of(store, baseline, name)
    times = queries.begun(store)
    found: dict[str, list[Point]] = {}
    for before, arm in zip([None, *arms], arms, strict=False):
        about = {"address": arm.address, "created_at": times[arm.run_id], "changed": changes_since(before, arm)}
        figures = figures_of(store, baseline, arm, measure)
        for suite in figures:
            found.setdefault(suite, [])
        for suite, points in found.items():
            fault = {"fault": "not asked in this run"}
            points.append(Point(**about, **figures.get(suite, figures[POOLED] if set(figures) == {POOLED} else fault)))
    if set(found) == {POOLED} and any(point.fault == unscored(measure.metric) for point in found[POOLED]):
        known = queries.metrics_of(store, arms[-1])
        there = f"metrics are {', '.join(known)}" if known else "it has no scores"
        raise ConfigError(f"{unscored(measure.metric)} in any run of {name} and in {baseline.address}; {there}")
    return {suite: with_change_points(points, alpha=alpha) for suite, points in sorted(found.items())}


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
        head, colon, tail = name.partition(":")
        hint = f"; history takes an arm's bare name, over every run: {tail}" if colon and head.isdecimal() else ""
        raise EvidenceError(f"{store.name}: no finished run has an arm '{name}' beside {baseline.address}{hint}")
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


def changes_since(before: ArmRecord | None, arm: ArmRecord) -> tuple[str, ...]:
    """Settings of an arm that differ from those in the run before, as `key: old -> new`; none without one."""
    return () if before is None else tuple(_changes(before, arm))


def _changes(before: ArmRecord, arm: ArmRecord) -> Iterator[str]:
    old, new = _settings(before), _settings(arm)
    noted = {key for one, other in ((old, new), (new, old)) for key in one.keys() - other.keys() if _is_noted(key)}
    for key in sorted((old.keys() | new.keys()) - noted):  # an earlier evalsvc did not note them
        if old.get(key) != new.get(key):
            yield f"{key}: {_short(old.get(key))} -> {_short(new.get(key))}"
    if old == new and before.fingerprint != arm.fingerprint:
        yield "fingerprint, by something that is not stored"


def _is_noted(key: str) -> bool:
    return key in ("torch", "driver", "template") or key.startswith("suite ")


def _settings(arm: ArmRecord) -> dict[str, Any]:
    stages = {f"{stage}.{key}": value for stage, held in arm.stages.items() for key, value in held.items()}
    left_out = ("note", "stopped", "reused", "rescored", "suites")
    details = {key: value for key, value in arm.details.items() if key not in left_out}
    suites = {
        f"suite {suite} {key}": value
        for suite, held in arm.details.get("suites", {}).items()
        for key, value in {**held, "scoring": arm.rescored.get(suite, held["scoring"])}.items()
    }
    return {"plan": arm.plan, **stages, **details, **suites, **arm.injected}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "…"
