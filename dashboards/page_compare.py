"""Page 2: how large is the drop, suite by suite, beside what the policy accepts and what the instrument does alone."""

import streamlit as st

from evalsvc.dashboards import charts, frames, markup
from evalsvc.dashboards.links import go
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import no_candidate, show_table
from evalsvc.dashboards.text import csv_bytes, markdown_free, points
from evalsvc.store.session import Store


def show(store: Store, view: RunView) -> None:
    """Forest plot of the chosen candidate's decision, then the same rows as a table to sort and to take away."""
    st.html(markup.header(view, "Compare"))
    chosen = view.chosen
    if chosen is None:
        return no_candidate()
    st.html(markup.candidate_head(chosen))
    if not chosen.rows:
        st.info(
            markdown_free(chosen.problem)
            if chosen.problem
            else "No gate has decided this candidate yet; the plot is drawn from its decision. Decide it with:"
        )
        st.code(
            f"evalsvc gate --baseline {view.baseline.address} --candidate {chosen.arm.address} --policy POLICY",
            language=None,
            wrap_lines=True,
        )
        return
    families = st.toggle("Show families", value=True, help="Families are described inside their suite, not decided.")
    rows = [row for row in chosen.rows if families or not row.described_only]
    frame = charts.forest_frame(rows)
    if frame.empty:
        st.info("No row of this decision has a drop: no item was scored in both arms. The Verdict page says why.")
    else:
        noise = frames.noise_interval(view.repeat)
        st.html(markup.marks_legend())
        st.altair_chart(charts.forest(frame, charts.points_domain([frame], noise), noise))
        st.caption(_about(noise, frames.noise_items(view.repeat)))
    go("flips", "Answers that flipped")
    table = frames.verdict_frame(rows)
    show_table(table, frames.verdict_columns())
    name = f"compare-{view.run.id}-{chosen.arm.id}.csv"
    st.download_button("Table as CSV", csv_bytes(table), file_name=name, mime="text/csv", icon=":material/download:")


def _about(noise: tuple[float, float] | None, n: int) -> str:
    lines = (
        "n items scored in both arms, b lost, c gained. Bounds are one-sided, as the gate tests. Described: a family, "
        "which has no verdict of its own."
    )
    if noise is None:
        return f"{lines} No A/A was run: the noise of the instrument is unknown, and no band is drawn."
    low, high = (points(bound, signed=True) for bound in noise)
    return f"{lines} Blue band: the baseline against itself, n {n:,}, 95 % interval {low} to {high} points."
