"""Histories as tables and as JSON. Drops of right-or-wrong metrics in points, of others in their own units."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalsvc.cli.common import one_line
from evalsvc.history import Histories, Point, by_suites, few
from evalsvc.row import format_p, format_points, plain_json
from evalsvc.series import POOLED, Measure
from evalsvc.store.records import ArmRecord


def series_document(points: Sequence[Point]) -> list[dict[str, Any]]:
    """A series as plain JSON: `drop_points`, or `drop` in the metric's own units; and so for interval and levels.

    A bound that nothing sets is null.
    """
    documents = []
    for point in points:
        document = {key: value for key, value in asdict(point).items() if key not in ("drop", "interval", "in_units")}
        scale, unit = (1, "") if point.in_units else (100, "_points")
        document[f"drop{unit}"] = None if point.drop is None else scale * point.drop
        document[f"interval{unit}"] = None if point.interval is None else [scale * bound for bound in point.interval]
        if point.change is not None:
            levels = {"before": point.change.before, "after": point.change.after}
            document["change"] = {f"{name}{unit}": scale * level for name, level in levels.items()}
            document["change"]["p"] = point.change.p
        documents.append(plain_json(document))
    return documents


def no_such_suite(arm: str, baseline: ArmRecord, suite: str, found: Histories) -> str:
    """Why a suite has no series: what there is, and which runs have it beside this baseline."""
    known = ", ".join(name for name in found.by_suite if name != POOLED)
    having = [address for address, suites in found.elsewhere.items() if suite in suites]
    if having:
        there = f"suite '{suite}' was asked in {few(having)}, and not of {baseline.address}"
        return f"{there}; name a baseline that has it" + (f", or a suite of {known}" if known else "")
    if not known:
        return f"no run of {arm} can be shown by suite: {found.by_suite[POOLED][-1].fault}"
    return f"no run of {arm} has suite '{suite}'; suites are {known}"


def render_histories(
    found: Mapping[str, Sequence[Point]], baseline: ArmRecord, measure: Measure, elsewhere: Mapping[str, Sequence[str]]
) -> RenderableType:
    """The pooled series run by run, then each suite's change points; where nothing is pooled, each suite run by run."""
    pooled = POOLED in found
    parts: list[RenderableType] = []
    for suite, points in found.items():
        if pooled and suite != POOLED:
            continue
        if suite != POOLED:
            parts.append(Text(one_line(suite), "bold"))
        parts.append(_table(points, _change_in(measure)))
        parts += [Text(one_line(f"{point.address}: {'; '.join(said)}")) for point in points if (said := _said(point))]
    parts.append(Text(_caption(found, one_line(baseline.address), measure)))
    if pooled:
        parts += [Text(one_line(line)) for suite in found if suite != POOLED for line in _lines(suite, found[suite])]
    if elsewhere:
        runs = "; ".join(by_suites(elsewhere))
        parts.append(Text(one_line(f"left out, asked nothing that {baseline.address} was: {runs}"), "dim"))
    return Group(*parts)


def _change_in(measure: Measure) -> str:
    """What a positive figure is."""
    return "drop" if measure.better == "higher" else "rise"


def _caption(found: Mapping[str, Sequence[Point]], baseline: str, measure: Measure) -> str:
    """What the figures are, in which units, and which way is worse."""
    metric, units = one_line(measure.metric), {point.in_units for s in found.values() for point in s if not point.fault}
    of = f" of {metric}" if metric else ""
    own = f"units of {metric} itself"
    unit = {frozenset({True}): own, frozenset({True, False}): f"points, or {own} where not all are from 0 to 1"}
    worse = "positive is worse" if measure.better == "higher" else "less is better, so positive is worse"
    change = f"{_change_in(measure)}{of} against {baseline}"
    return f"{change}, in {unit.get(frozenset(units), 'points')}: {worse}; an alert, no verdict"


def _lines(suite: str, points: Sequence[Point]) -> Iterator[str]:
    """A suite's change points, with what was changed in the run before which its level changed."""
    known = [point for point in points if point.drop is not None]
    if not known:
        yield f"{suite}: {points[-1].fault}"
    elif not any(point.change for point in known):
        yield f"{suite}: no change of level in {len(known):,} run{'s' * (len(known) != 1)}"
    for point in known:
        if point.change is not None:
            since = f"; since the run before: {', '.join(point.changed)}" if point.changed else ""
            yield f"{suite}: {_changed(point)} at {point.address}{since}"


def _changed(point: Point) -> str:
    assert point.change is not None
    levels = f"{_amount(point, point.change.before)} to {_amount(point, point.change.after)}"
    return f"LEVEL CHANGED from {levels} (p {format_p(point.change.p)})"


def _amount(point: Point, value: float) -> str:
    if not isfinite(value):
        return "none"
    return f"{value:.4g}" if point.in_units else format_points(value)


def _said(point: Point) -> list[str]:
    """What is to be said of a run below its table."""
    said = [_changed(point)] if point.change is not None else []
    said += [f"not compared, {point.fault}"] if point.fault else []
    return said + ([f"since the run before: {', '.join(point.changed)}"] if point.changed else [])


def _table(points: Sequence[Point], change: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("began", no_wrap=True)
    for name in ("b", "c", "n", change, "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("level", no_wrap=True)
    for point in points:
        began, address = point.created_at[:16].replace("T", " "), one_line(point.address)
        if point.drop is None or point.interval is None:
            cells = ["", "", "", "", ""]
        else:
            low, high = (_amount(point, bound) for bound in point.interval)
            counts = (f"{point.lost:,}", f"{point.gained:,}", f"{point.n:,}")
            cells = [*counts, _amount(point, point.drop), f"[{low}, {high}]"]
        level = "new" if point.change is not None else ""
        table.add_row(*(Text(cell) for cell in (address, began, *cells, level)))
    return table
