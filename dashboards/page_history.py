"""Page 9: since when? One arm over its runs, each against one frozen baseline."""

import pandas as pd
import streamlit as st

from evalsvc.dashboards import charts_series, frames, markup, reads_arms
from evalsvc.dashboards.asked import when_asked
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.selection import not_there, pick, pick_text
from evalsvc.dashboards.show import no_candidate, show_table
from evalsvc.dashboards.text import markdown_free
from evalsvc.errors import EvidenceError
from evalsvc.history import Point, arms_of, by_suites
from evalsvc.row import format_p
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store

_POINTS = ("drop, points", "95 % lower", "95 % upper")
ALL = ""  # all suites pooled, in the address


def show(store: Store, view: RunView) -> None:
    """The series as a chart with its change points, then run by run with what was changed."""
    st.html(markup.header(view, "History"))
    if view.chosen is None:
        return no_candidate()
    promotions = queries.baselines(store)
    promoted = {record.arm_id: f"@{record.name}" for record in promotions if record.current}
    frozen = {view.baseline.address: view.baseline}
    if promoted:
        frozen = {arm.address: arm for arm in queries.arms(store) if arm.id in promoted} | frozen
    st.html(markup.candidate_head(view.chosen))
    for sentence in not_there("frozen", frozen, "promoted baseline of this database"):
        st.warning(sentence)
    left, right = st.columns(2)
    with left:
        baseline = pick("Frozen baseline", "frozen", frozen, lambda arm: _named(arm, promoted))
    try:
        arms = arms_of(store, baseline, view.chosen.arm.name)
    except EvidenceError as error:
        st.info(f"{markdown_free(str(error), 400)}. A series begins with a finished run.")
        return
    elsewhere = reads_arms.elsewhere(store, baseline, arms)
    others = markdown_free(f"asked nothing that {baseline.address} was: {'; '.join(by_suites(elsewhere))}", 400)
    arms = [arm for arm in arms if arm.address not in elsewhere]
    if not arms:
        st.info(f"No run of this arm can be compared with this baseline; all were {others}.")
        return
    with right:
        suites = [ALL, *reads_arms.suites_of(store, baseline, arms)]
        lost = not_there("series", suites, "suite of this series")
        of = pick_text("Suite", "series", suites, lambda name: name or "all suites pooled")
    for sentence in lost:
        st.warning(sentence)
    points, words = reads_arms.series(store, baseline, arms, _later(store, baseline, arms, of), of)
    frame = charts_series.history_frame(points, words)
    if frame.empty:
        st.info("No run of this arm can be compared with this baseline; the table says why of each.")
    else:
        for sentence in _changes(points):
            st.warning(markdown_free(sentence, 400))
        times = [(record.created_at, record.name) for record in promotions]
        st.altair_chart(charts_series.history(frame, times))
        sizes = [point.n for point in points if point.drop is not None]
        smallest, largest = min(sizes), max(sizes)
        items = f"n {smallest:,}" if smallest == largest else f"n {smallest:,} to {largest:,}"
        about = f"suite {markdown_free(of)}" if of else "all suites pooled"
        st.caption(
            f"Drop of {about} against the frozen baseline, {items} items a run; band and upright lines: 95 % interval. "
            "Colour and shape: the gate's word for the whole candidate. Dashed rule: the level changes there (an "
            "alert, no verdict). ▲ at the foot: something else was deployed than in the run before, which the table "
            "names. Violet rule: a baseline was promoted."
        )
    if elsewhere:
        st.caption(f"Left out, {others}.")
    show_table(_table(points, words), {name: st.column_config.NumberColumn(name, format="%.2f") for name in _POINTS})


def _later(store: Store, baseline: ArmRecord, arms: list[ArmRecord], suite: str) -> set[int]:
    """Arms that were not compared yet, where comparing them all would hold the page up and nobody asked for it."""
    waiting = reads_arms.not_compared(store, baseline, arms, suite)
    samples = sum(baseline.expected + arm.expected for arm in waiting)
    runs = f"{len(waiting):,} run{'s' if len(waiting) > 1 else ''} not compared with this baseline yet"
    shown = when_asked(samples, runs, f"history {baseline.id} {[arm.id for arm in waiting]}")
    return set() if shown else {arm.id for arm in waiting}


def _named(arm: ArmRecord, promoted: dict[int, str]) -> str:
    return f"{arm.address} {promoted.get(arm.id, '')}".strip()


def _changes(points: list[Point]) -> list[str]:
    found = []
    for point in points:
        if point.change is None:
            continue
        with_it = f"; changed with it: {'; '.join(point.changed)}" if point.changed else "; no setting changed with it"
        found.append(
            f"The level changed at {point.address} ({point.created_at[:10]}): {100 * point.change.before:.2f} to "
            f"{100 * point.change.after:.2f} points, p {format_p(point.change.p, sign=True)}{with_it}"
        )
    return found


def _table(points: list[Point], words: dict[str, str]) -> pd.DataFrame:
    newest = points[::-1]
    intervals = [point.interval or (None, None) for point in newest]
    return pd.DataFrame(
        {
            "run": frames.text_column([point.address for point in newest]),
            "began, UTC": frames.text_column([point.created_at[:16].replace("T", " ") for point in newest]),
            "gate": frames.text_column([words.get(point.address, "not decided") for point in newest]),
            "n": frames.number_column([point.n or None for point in newest]),
            "lost b": frames.number_column([point.lost if point.n else None for point in newest]),
            "gained c": frames.number_column([point.gained if point.n else None for point in newest]),
            "drop, points": frames.number_column([_points(point.drop) for point in newest]),
            "95 % lower": frames.number_column([_points(low) for low, _ in intervals]),
            "95 % upper": frames.number_column([_points(high) for _, high in intervals]),
            "since the run before": frames.text_column(["; ".join(_since(point)) for point in newest]),
        }
    )


def _since(point: Point) -> list[str]:
    """Why a run has no number, whether the level changed with it, and what was deployed before it."""
    change = point.change
    level = f"level {100 * change.before:.2f} to {100 * change.after:.2f} points" if change else ""
    return [said for said in (point.fault, level, *point.changed) if said]


def _points(value: float | None) -> float | None:
    return None if value is None else 100 * value
