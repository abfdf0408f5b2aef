"""Page 1: may we ship it? What the gate decided of every candidate, in its own words."""

import streamlit as st

from evalsvc.dashboards import markup, tables
from evalsvc.dashboards.links import go
from evalsvc.dashboards.progress import show_progress
from evalsvc.dashboards.reads import RunView
from evalsvc.store.session import Store

_FIRST = ("REGRESSED", "INVALID", "INCONCLUSIVE", None, "PASS")


def show(store: Store, view: RunView) -> None:
    """A card a candidate, worst first; then candidates by suites, the A/A, and every suite."""
    st.html(markup.header(view, "Verdict"))
    if not view.finished:
        show_progress(store, view)
    if not view.candidates:
        st.info("This run has no arm beside the baseline. Add arms to the experiment, then `evalsvc run FILE`.")
        return
    st.html(markup.title("At a glance", "The gate's verdict of each candidate; then word and drop in points by suite."))
    st.html(tables.overview(view))
    st.html(tables.repeat_line(view))
    st.html(markup.title("Each candidate", "In the gate's own words, worst first."))
    for candidate in sorted(view.candidates, key=lambda found: _FIRST.index(found.word)):
        st.html(markup.verdict_card(candidate))
        if candidate.decision is None:
            st.code(_gate_command(view, candidate.arm.address), language=None, wrap_lines=True)
        else:
            go("compare", f"Compare {candidate.arm.name} with the baseline", candidate=candidate.arm.name)
    st.html(markup.title("Every suite", "As the gate decided it. Drops, bounds and margins in points."))
    families = st.toggle("Show families", value=False, help="Families are described inside their suite, not decided.")
    st.html(tables.verdict_table(view, families=families))
    with st.expander("How to read this table"):
        st.markdown(
            "- **lost b**: right in the baseline only. **gained c**: right in the candidate only. "
            "**drop** = (b - c) / n, in points.\n"
            "- **✓ PASS**: the upper bound of the drop lies within the margin. "
            "**▼ REGRESSED**: a drop is proven and is not proven to lie within the margin. "
            "**? INCONCLUSIVE**: neither is proven. **⊘ INVALID**: the evidence cannot carry a verdict.\n"
            "- **blind**: no scored token met a factor in which the arms differ, so the row cannot see the change.\n"
            "- **p, Holm**: one-sided p of no drop, adjusted over suites and pooled row; families show their own."
        )


def _gate_command(view: RunView, address: str) -> str:
    return f"evalsvc gate --baseline {view.baseline.address} --candidate {address} --policy POLICY"
