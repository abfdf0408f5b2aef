"""View 1: what the gate decided, and what each arm really was."""

import streamlit as st

from evalsvc.dashboards import markup, tables
from evalsvc.dashboards.reads import RunView


def show(view: RunView) -> None:
    """Verdict table, A/A line, and the measured side of every arm."""
    if not view.candidates:
        st.info("This run has no arm beside the baseline.")
        return
    st.html(markup.title("At a glance", "The gate's verdict of each candidate; then word and drop in points by suite."))
    st.html(tables.overview(view))
    st.html(tables.repeat_line(view))
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
    explained = (
        "Measured, not asked for. weights: bytes of the format; resident: what this process holds for it. "
        "KL: of the next token against the baseline over a fixed text, per stage."
    )
    st.html(markup.title("What each stage held", explained))
    st.html(tables.arms_table(view))
