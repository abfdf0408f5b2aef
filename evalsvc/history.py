"""One arm's drop over its runs, each against one frozen baseline: where its level changed, and what changed with it."""

from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class Histories:
    """The series of an arm against one baseline.

    Attributes:
        by_suite: Oldest run first; of all suites pooled under the empty name, unless they are about a metric.
        elsewhere: The arm in runs that were asked nothing of what the baseline was, with the suites of each.
    """

    by_suite: dict[str, list[Point]]
    elsewhere: dict[str, list[str]]


def history(store: Store, baseline: ArmRecord, name: str, *, alpha: float = 0.05) -> list[Point]:
    """The series of an arm over all suites pooled; as `histories`."""
    return histories(store, baseline, name, alpha=alpha).by_suite[POOLED]


def histories(
    store: Store, baseline: ArmRecord, name: str, *, alpha: float = 0.05, measure: Measure = OWN
) -> Histories:
    """The series of an arm by suite, with their change points: alerts, never verdicts.

    Args:
        store: Where the runs are.
        baseline: What every run is compared with.
        name: The arm's name in the runs.
        alpha: A level changes where the permutation p of a split is at most this.
        measure: What is compared. Series of the items' own metric that were kept (`keep_series`) are not read again.

    Raises:
        EvidenceError: No finished run has this arm, or none that was asked anything of what the baseline was.
        ConfigError: The measure names a metric that no run of it has.
    """
    arms = arms_of(store, baseline, name)
    figures = {arm.id: figures_of(store, baseline, arm, measure) for arm in arms}
    elsewhere = asked_elsewhere(store, baseline, [arm for arm in arms if fault_of(figures[arm.id])])
    arms = [arm for arm in arms if arm.address not in elsewhere]
    if not arms:
        there = "; ".join(by_suites(elsewhere))
        raise EvidenceError(f"no run of {name} was asked anything that {baseline.address} was: {there}")
    if all(fault_of(figures[arm.id]) for arm in arms) and any(
        fault_of(figures[arm.id]) == unscored(measure.metric) for arm in arms
    ):
        known = queries.metrics_of(store, arms[-1])
        there = f"metrics are {', '.join(known)}" if known else "it has no scores"
        raise ConfigError(f"{unscored(measure.metric)} in any run of {name} and in {baseline.address}; {there}")
    found = _series(store, arms, [figures[arm.id] for arm in arms], pooled=not measure.metric)
    return Histories({suite: with_change_points(points, alpha=alpha) for suite, points in found.items()}, elsewhere)


_Figures = dict[str, dict[str, Any]]


def _series(
    store: Store, arms: Sequence[ArmRecord], figures: Sequence[_Figures], *, pooled: bool
) -> dict[str, list[Point]]:
    """By suite the points of all runs from the first one that was asked it; the pooled series alone where none is."""
    suites = sorted(set[str]().union(*figures) - {POOLED})
    times = queries.begun(store)
    about = [
        {"address": arm.address, "created_at": times[arm.run_id], "changed": changes_since(before, arm)}
        for before, arm in zip([None, *arms], arms, strict=False)
    ]
    found = {}
    for suite in [POOLED, *suites] if pooled or not suites else suites:
        of_runs = [of_suite(each, suite) for each in figures]
        begins = next(n for n, each in enumerate(of_runs) if each is not _NOT_ASKED)
        points = zip(about[begins:], of_runs[begins:], strict=True)
        found[suite] = [Point(**known, **each) for known, each in points]
    return found


_NOT_ASKED: dict[str, Any] = {"fault": "not asked in this run"}


def of_suite(figures: _Figures, suite: str) -> dict[str, Any]:
    """A run's figures of a suite; the fault of the whole run where it has one."""
    return figures[suite] if suite in figures else figures[POOLED] if fault_of(figures) else _NOT_ASKED


def fault_of(figures: _Figures) -> str:
    """Why a whole run cannot be compared; empty where it can."""
    return figures[POOLED].get("fault", "") if set(figures) == {POOLED} else ""


def asked_elsewhere(store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord]) -> dict[str, list[str]]:
    """Of these arms those that were asked no suite of the baseline's, with the suites of each."""
    asked = set(queries.suites_of(store, baseline)) if arms else set[str]()
    held = {arm.address: queries.suites_of(store, arm) for arm in arms}
    return {address: suites for address, suites in held.items() if suites and not asked & set(suites)}


def by_suites(elsewhere: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Runs that were asked other suites, those of the same ones together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for address, suites in elsewhere.items():
        together.setdefault(tuple(suites), []).append(address)
    for suites, addresses in together.items():
        yield f"{few(addresses)} ({', '.join(suites)})"


def few(names: Sequence[str], limit: int = 4) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


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
