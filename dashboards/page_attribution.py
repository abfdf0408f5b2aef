"""Page 6: which factor did it. What the arms cannot tell is shown as unknown."""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from evalsvc.attributing import POOLED, attribute_suites
from evalsvc.dashboards import charts_arms, frames, markup, tables
from evalsvc.dashboards.asked import when_asked
from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.progress import state_of
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import show_table
from evalsvc.dashboards.text import markdown_free
from evalsvc.errors import EvidenceError
from evalsvc.store import queries
from evalsvc.store.session import Store
from evalsvc.verdict.attribution import Effect

_ABOUT = (
    "Dot: drop in points; line: 95 % interval; hollow: the extra drop of two changes together. n: items scored in all "
    "arms that the effect is read from."
)


def show(store: Store, view: RunView) -> None:
    """Effects with their intervals, then what is unknown and which arm would tell."""
    st.html(markup.header(view, "Attribution", view.own_baseline))
    if not view.finished:
        st.info(f"Effects are of finished arms. {state_of(view.run)}")
        return
    arms = queries.arms(store, view.run.id)
    if not when_asked(sum(arm.expected for arm in arms), "the effects", f"attribution {view.run.id}"):
        st.info("Effects are read from every sample of the run, which is large. They are computed when you ask.")
        return
    try:
        by_suite, left_out = kept(store, arms, "attribution", lambda: attribute_suites(store, view.run.id))
    except EvidenceError as error:
        st.info(f"{markdown_free(str(error), 400)}.")
        return
    found = by_suite[POOLED]
    frame = charts_arms.effects_frame(found)
    if frame.empty:
        st.info("These arms differ from the baseline in nothing that can be told apart.")
    else:
        st.html(
            markup.title(
                "All suites pooled",
                f"Drop that each change causes, against {view.own_baseline}, this run's own baseline.",
            )
        )
        st.altair_chart(charts_arms.effects(frame))
        st.html(markup.quiet(_ABOUT))
        _table(frame)
        _suites({suite: effects for suite, effects in by_suite.items() if suite != POOLED})
    unknown = unknown_frame(found)
    if not unknown.empty:
        st.html(markup.title("Unknown", "What these arms cannot separate, and the arm that would."))
        st.html(tables.wrapped(unknown))
    if left_out:
        st.html(markup.title("Left out", "Arms that effects are not read from."))
        st.html(tables.wrapped(pd.DataFrame({"arm": frames.text_column(left_out)})))


def unknown_frame(effects: Sequence[Effect]) -> pd.DataFrame:
    """One line a reason, with every change that it leaves unknown."""
    changes: dict[str, list[str]] = {}
    for effect in effects:
        if effect.drop is None:
            changes.setdefault(effect.unknown, []).append(charts_arms.effect_name(effect))
    left = ["\n".join(names) for names in changes.values()]
    return pd.DataFrame({"why": frames.text_column(list(changes)), "unknown": pd.Series(left, dtype="string")})


def _suites(by_suite: Mapping[str, Sequence[Effect]]) -> None:
    """The main effects of each suite, change by change."""
    single = {suite: [one for one in effects if len(one.changes) == 1] for suite, effects in by_suite.items()}
    parts = [charts_arms.effects_frame(effects, frames.cell(suite)) for suite, effects in single.items()]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if len(by_suite) < 2 or frame.empty:
        return
    frame = frame.sort_values("change", kind="stable")
    st.html(markup.title("Suite by suite", "The same, read from the items of one suite; Holm inside each suite."))
    st.altair_chart(charts_arms.effects(frame))
    st.html(markup.quiet(_ABOUT))
    _table(frame)


def _table(frame: pd.DataFrame) -> None:
    shown = frame.drop(columns="text")
    shown = shown if any(frame["suite"].tolist()) else shown.drop(columns="suite")
    points = {
        name: st.column_config.NumberColumn(f"{name}, points", format="%.2f") for name in ("drop", "lower", "upper")
    }
    show_table(shown, points | {"p": st.column_config.NumberColumn("p, Holm", format="%.3g")})
