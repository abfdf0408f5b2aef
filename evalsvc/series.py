"""The figures of one run of an arm against a frozen baseline, by suite; kept, so that a long history is fast."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalsvc.evidence import average_repeats, counted_of, differing_factors, find_faults, with_metric, with_mode
from evalsvc.limits import Better, Margin
from evalsvc.modes import FREE, PREFIX
from evalsvc.policy import Policy
from evalsvc.reading import OWN as OWN_READING
from evalsvc.reading import Reading, holds, measure_pairs, read_side
from evalsvc.store import queries, writer
from evalsvc.store.records import ArmRecord, Pair
from evalsvc.store.session import Store

POOLED = ""  # all suites, each item once
_POLICY = Policy(name="history", proof="declared", rendering="may_differ")
_FIELDS = ("n", "lost", "gained", "drop", "interval")
_BLIND = "no counted item met a factor in which the arms differ"


@dataclass(frozen=True)
class Measure:
    """What a series is about.

    Attributes:
        metric: A metric that the samples carry; empty for the items' own right-or-wrong one.
        better: Whether more of it is better.
    """

    metric: str = ""
    better: Better = "higher"


OWN = Measure()


def figures_of(store: Store, baseline: ArmRecord, arm: ArmRecord, measure: Measure = OWN) -> dict[str, dict[str, Any]]:
    """Figures by suite and pooled (`POOLED`): n, lost, gained, drop and interval, or `fault` alone.

    Those of the items' own metric are read from where `keep_series` put them, if both arms are still scored alike. A
    metric whose values are not from 0 to 1 is in units of its own and has no pooled figures.
    """
    kept = kept_figures(baseline, arm) if measure == OWN else None
    return _computed(store, baseline, arm, measure) if kept is None else kept


def kept_figures(baseline: ArmRecord, arm: ArmRecord) -> dict[str, dict[str, Any]] | None:
    """The figures of the items' own metric that `keep_series` kept, as `figures_of`; None without any that hold."""
    kept = arm.series.get(str(baseline.id), {})
    if kept.get("of") != _identity(baseline, arm):
        return None
    return {suite: _read(figures) for suite, figures in kept["figures"].items()}


def keep_series(store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord]) -> int:
    """Keeps the figures of finished arms that are not kept yet; returns of how many arms."""
    made = {}
    for arm in arms:
        held = arm.series.get(str(baseline.id), {})
        if arm.status == "finished" and arm.id != baseline.id and held.get("of") != _identity(baseline, arm):
            figures = _computed(store, baseline, arm, OWN)
            made[arm.id] = {str(baseline.id): {"of": _identity(baseline, arm), "figures": figures}}
    if made:
        writer.save_series(store, made)
    return len(made)


def _identity(baseline: ArmRecord, arm: ArmRecord) -> list[Any]:
    """What kept figures hang on beside the samples, which do not change once an arm is finished."""
    return [baseline.address, baseline.fingerprint, baseline.rescored, arm.fingerprint, arm.rescored]


def _read(figures: Mapping[str, Any]) -> dict[str, Any]:
    interval = figures.get("interval")
    return dict(figures) | ({} if interval is None else {"interval": (interval[0], interval[1])})


def _computed(store: Store, baseline: ArmRecord, arm: ArmRecord, measure: Measure) -> dict[str, dict[str, Any]]:
    every = set(queries.suites_of(store, arm)) if measure.metric else set[str]()
    pairs = queries.pairs(store, baseline, arm, scores_of=every)
    policy = _policy(measure.metric, every)
    faults = find_faults(baseline, arm, pairs, policy)
    if faults:
        return {POOLED: {"fault": faults[0]}}
    averaged = average_repeats(pairs)
    read = [*with_metric(averaged), *with_mode(averaged, policy)]
    counted = counted_of(read, differing_factors(baseline, arm))
    if not measure.metric:
        together = [pair for members in counted.values() for pair in members]
        return {name: _figures(members, OWN_READING) for name, members in {POOLED: together, **counted}.items()}
    about = {suite: [p for p in members if _holds(p, measure.metric)] for suite, members in counted.items()}
    found = {suite: _figures(members, _reading(members, measure)) for suite, members in about.items() if members}
    return found or {POOLED: {"fault": unscored(measure.metric)}}


def _policy(metric: str, suites: Collection[str]) -> Policy:
    """What runs are held to. Of a failure mode prompts that carry no verdict are read too."""
    if not metric.startswith((PREFIX, FREE)):
        return _POLICY
    return _POLICY.model_copy(
        update={"margins": [Margin(suite=suite, metric=metric, margin_points=1) for suite in suites]}
    )


def unscored(metric: str) -> str:
    """The fault of a run that can be compared, none of whose items has the metric."""
    return f"no item has a score of {metric}"


def _figures(pairs: Sequence[Pair], reading: Reading) -> dict[str, Any]:
    measured = measure_pairs(pairs, 0.05, reading=reading)
    if measured is None:
        return {"fault": _BLIND}
    return {name: getattr(measured, name) for name in _FIELDS} | ({"in_units": True} if reading.in_units else {})


def _holds(pair: Pair, metric: str) -> bool:
    return pair.metric == metric or any(holds(side, metric) for side in (pair.baseline, pair.candidate))


def _reading(pairs: Sequence[Pair], measure: Measure) -> Reading:
    """From 0 to 1 where all of its values are and more is better; else in units of its own."""
    free = Reading(metric=measure.metric, in_units=True, better=measure.better)
    values = [read_side(side, free, pair.metric) for pair in pairs for side in (pair.baseline, pair.candidate)]
    plain = measure.better == "higher" and all(isinstance(v, float) and 0 <= v <= 1 for v in values if v is not None)
    return Reading(metric=measure.metric) if plain else free
