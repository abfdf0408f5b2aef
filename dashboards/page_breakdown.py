"""Page 8: where did it drop, and how are wrong answers wrong."""

import pandas as pd
import streamlit as st

from evalsvc.calling import call_figures
from evalsvc.dashboards import charts_grid, frames, markup, reads_arms
from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.frames import number_column, text_column
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import no_candidate, show_table
from evalsvc.store.rates import failure_rates
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store

_SHARES = ("trigger F1, %", "calls that fit their schema, %")


def show(store: Store, view: RunView) -> None:
    """Heat map of all candidates; error classes, failure modes and tool calls of the chosen one and the baseline."""
    st.html(markup.header(view, "Breakdown"))
    if view.chosen is None:
        return no_candidate()
    heat = charts_grid.heat_frame(view.candidates)
    if heat.empty:
        st.info("No gate has decided a candidate of this run, so no drops are known. `evalsvc gate` decides it.")
    else:
        explained = (
            f"Drop in points of every family, as the gate described it; under {charts_grid.SMALLEST_CELL} items blank."
        )
        st.html(markup.title("Families", explained))
        st.altair_chart(charts_grid.heat_map(heat))
    arms = (view.baseline, view.chosen.arm)
    st.html(markup.candidate_head(view.chosen))
    found = {
        arm.id: kept(store, (arm,), "error classes", lambda arm=arm: reads_arms.error_classes(store, arm))
        for arm in arms
    }
    names = {arm.id: view.named(arm) for arm in arms}
    frame = _shares(names, found)
    if frame.empty:
        st.info("No answer of these two arms has an error class.")
    else:
        explained = "Error classes of scored answers, as the suites' scorers named them. A right answer has none."
        st.html(markup.title("How wrong answers are wrong", explained))
        st.altair_chart(charts_grid.taxonomy(frame, [frames.cell(name) for name in names.values()]))
        sizes = ", ".join(
            f"{frames.cell(s)} n {n:,}" for s, n in dict(zip(frame["suite"], frame["n"], strict=True)).items()
        )
        st.html(markup.quiet(f"Scored answers an arm: {sizes}."))
    _modes(store, view, arms)
    _calls(store, view, arms)


def _shares(names: dict[int, str], found: dict[int, list[tuple[str, str | None, int]]]) -> pd.DataFrame:
    lines = []
    for arm_id, name in names.items():
        totals: dict[str, int] = {}
        for suite, _, count in found[arm_id]:
            totals[suite] = totals.get(suite, 0) + count
        for suite, error, count in found[arm_id]:
            if error:
                line = {"suite": frames.cell(suite), "error": frames.cell(error), "arm": frames.cell(name)}
                lines.append(line | {"count": count, "n": totals[suite], "share": 100 * count / totals[suite]})
    columns = ["suite", "error", "arm", "count", "n", "share"]
    return pd.DataFrame(lines, columns=columns).sort_values(["suite", "error"], kind="stable")


def _modes(store: Store, view: RunView, arms: tuple[ArmRecord, ...]) -> None:
    rates = {
        arm.id: kept(store, arms, f"modes {arm.id}", lambda arm=arm: failure_rates(store, arm, view.baseline))
        for arm in arms
    }
    lines = [
        (suite, view.named(arm), mode, count, found.answers, 100 * count / found.answers)
        for arm in arms
        for suite, found in rates[arm.id].items()
        for mode, count in found.shown.items()
    ]
    st.html(markup.title("Failure modes", "Generated answers that show a mode, whatever their score."))
    if not lines:
        st.caption("No generated answer of these two arms shows one, or none was looked at for them.")
        return
    columns = {"suite": text_column, "arm": text_column, "mode": text_column}
    columns |= {"answers": number_column, "of n": number_column, "share, %": number_column}
    shown = {"share, %": st.column_config.NumberColumn("share, %", format="%.2f")}
    show_table(frames.table(lines, **columns), shown)


def _calls(store: Store, view: RunView, arms: tuple[ArmRecord, ...]) -> None:
    lines = []
    for arm in arms:
        found = kept(store, (arm,), "calls", lambda arm=arm: call_figures(store, arm))
        lines += [
            (suite, view.named(arm), one.answers, one.triggered, *map(_percent, (one.expected.f1, one.schema_accuracy)))
            for suite, one in found.items()
        ]
    if not lines:
        return
    st.html(markup.title("Tool calls", "When a call is begun, against what the cases expect, and whether it fits."))
    columns = {"suite": text_column, "arm": text_column, "answers n": number_column, "with a call": number_column}
    columns |= dict.fromkeys(_SHARES, number_column)
    shown = {name: st.column_config.NumberColumn(name, format="%.1f") for name in _SHARES}
    show_table(frames.table(lines, **columns), shown)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
