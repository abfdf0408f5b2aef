"""Page 6: which factor did it. What the arms cannot tell is shown as unknown."""

import pandas as pd
import streamlit as st

from evalsvc.attributing import attribute_run
from evalsvc.dashboards import charts_arms, frames, markup
from evalsvc.dashboards.asked import when_asked
from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import show_table
from evalsvc.dashboards.text import markdown_free
from evalsvc.errors import EvidenceError
from evalsvc.store import queries
from evalsvc.store.session import Store


def show(store: Store, view: RunView) -> None:
    """Effects with their intervals, then what is unknown and which arm would tell."""
    st.html(markup.header(view, "Attribution"))
    if not view.finished:
        st.info("Effects are of finished arms. This run is in progress; come back when it has finished.")
        return
    arms = queries.arms(store, view.run.id)
    if not when_asked(sum(arm.expected for arm in arms), "the effects", f"attribution {view.run.id}"):
        st.info("Effects are read from every sample of the run, which is large. They are computed when you ask.")
        return
    try:
        found, left_out = kept(store, arms, "attribution", lambda: attribute_run(store, view.run.id))
    except EvidenceError as error:
        st.info(f"{markdown_free(str(error), 400)}. An arm that differs from the baseline in one factor would tell.")
        return
    frame = charts_arms.effects_frame(found)
    if frame.empty:
        st.info("These arms differ from the baseline in nothing that can be told apart.")
    else:
        st.altair_chart(charts_arms.effects(frame))
        st.html(
            markup.quiet(
                f"Drop that each change causes, 95 % intervals, against {view.run.id}:{view.run.baseline}; hollow: the "
                "extra drop of two changes together. n: items scored in all arms that the effect is read from."
            )
        )
        show_table(frame.drop(columns="text"))
    unknown = [(charts_arms.effect_name(effect), effect.unknown) for effect in found if effect.drop is None]
    if unknown:
        st.html(markup.title("Unknown", "What these arms cannot separate, and the arm that would."))
        show_table(
            pd.DataFrame(
                {
                    "change": frames.text_column([name for name, _ in unknown]),
                    "why": frames.text_column([why for _, why in unknown]),
                }
            )
        )
    if left_out:
        st.html(markup.title("Left out", "Arms that effects are not read from."))
        show_table(pd.DataFrame({"arm": frames.text_column(left_out)}))
