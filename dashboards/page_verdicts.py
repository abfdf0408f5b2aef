"""Page 1: may we ship it? What the gate decided of every candidate, in its own words."""

import streamlit as st

from evalsvc.dashboards import markup, reads_arms, tables
from evalsvc.dashboards.links import go
from evalsvc.dashboards.progress import show_progress
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.show import no_candidate
from evalsvc.dashboards.text import markdown_free
from evalsvc.store.session import Store

MOST_JOBS = 3
_FIRST = ("REGRESSED", "INVALID", "INCONCLUSIVE", None, "PASS")


def show(store: Store, view: RunView) -> None:
    """A card a candidate, worst first; then candidates by suites, the A/A, and every suite."""
    st.html(markup.header(view, "Verdict"))
    if not view.finished:
        show_progress(store, view)
    _failed_jobs(store)
    if not view.candidates:
        return no_candidate()
    st.html(markup.title("At a glance", "The gate's verdict of each candidate; then word and drop in points by suite."))
    st.html(tables.overview(view))
    st.html(tables.repeat_line(view))
    st.html(markup.title("Each candidate", "In the gate's own words, worst first."))
    for candidate in sorted(view.candidates, key=lambda found: _FIRST.index(found.word)):
        st.html(markup.verdict_card(candidate))
        if candidate.decision is None:
            st.code(_gate_command(view, candidate.arm.address), language=None, wrap_lines=True)
        else:
            _further(candidate.arm.name)
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


def _further(name: str) -> None:
    """Where the next questions about a candidate are answered."""
    with st.container(horizontal=True):
        go("compare", f"Compare {name} with the baseline", candidate=name)
        for path, label in (("flips", "What broke"), ("history", "Since when"), ("tradeoff", "What it gains")):
            go(path, label, candidate=name)


def _gate_command(view: RunView, address: str) -> str:
    return f"evalsvc gate --baseline {view.baseline.address} --candidate {address} --policy POLICY"


def _failed_jobs(store: Store) -> None:
    """Jobs that did not end well the last time, since their runs are not among those on this page."""
    failed = reads_arms.failed_jobs(store)
    for job, planned, status, message in failed[:MOST_JOBS]:
        ended = "was missed" if status == "missed" else "failed"
        what = f"Job {job}, planned for {markup.minute(planned)}, {ended}"
        st.warning(markdown_free(f"{what}: {message}" if message else f"{what}.", 300))
    if failed:
        more = f" ({len(failed) - MOST_JOBS} more)" if len(failed) > MOST_JOBS else ""
        go("health", f"All jobs and their messages{more}")
