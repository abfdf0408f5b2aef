"""View 2: the drops with their intervals beside the margin."""

import streamlit as st

from evalsvc.dashboards import charts, markup
from evalsvc.dashboards.reads import RunView


def show(view: RunView) -> None:
    """A forest plot a candidate, on one scale unless asked otherwise."""
    decided = [candidate for candidate in view.candidates if candidate.rows]
    if not decided:
        st.info("No gate has decided a candidate of this run yet; the plot is drawn from its decision.")
        return
    left, right = st.columns(2)
    families = left.toggle("Show families", value=False, key="forest_families")
    own_scale = right.toggle("Zoom each candidate", value=False, help="Off: all candidates share one scale.")
    frames = {
        candidate.arm.name: charts.forest_frame(row for row in candidate.rows if families or not row.described_only)
        for candidate in decided
    }
    shared = charts.points_domain(list(frames.values()))
    st.html(markup.marks_legend())
    for candidate in decided:
        frame = frames[candidate.arm.name]
        st.html(markup.candidate_head(candidate))
        if frame.empty:
            st.caption("No row of this decision has a drop.")
            continue
        domain = charts.points_domain([frame]) if own_scale else shared
        st.altair_chart(charts.forest(frame, domain))
