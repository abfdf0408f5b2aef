"""The dashboard: one page with three views of one run. Started by `evalsvc dashboard`.

Run it alone with `python -m streamlit run dashboards/app.py -- --db PATH`.
"""

import os
import sys
from collections.abc import Callable
from typing import TypeVar

import streamlit as st

from evalsvc.dashboards import markup, page_flips, page_forest, page_verdicts, reads
from evalsvc.dashboards.launch import database_address
from evalsvc.dashboards.text import visible_text
from evalsvc.errors import EvalsvcError
from evalsvc.store.records import RunRecord
from evalsvc.store.session import Store, open_store

T = TypeVar("T")


def main() -> None:
    """Opens the database and shows it; whatever is wrong with it becomes one sentence."""
    st.set_page_config(page_title="evalsvc", page_icon="⚖️", layout="wide")
    st.html(markup.PAGE_STYLE)
    address = database_address(sys.argv[1:], dict(os.environ))
    if address is None:
        st.info("No database is named. Start with `evalsvc dashboard --db PATH`, or set `EVALSVC_DB`.")
        return
    try:
        with open_store(address, read_only=True) as store:
            _show_store(store)
    except EvalsvcError as error:
        st.error("The database cannot be shown.")
        st.code(visible_text(str(error)), language=None, wrap_lines=True)


def _show_store(store: Store) -> None:
    runs = reads.main_runs(store)
    if not runs:
        st.info("The database holds no run with arms yet. `evalsvc run FILE` makes one; then reload this page.")
        return
    with st.sidebar:
        st.html(markup.BRAND)
        run = _pick("Run", {run.id: run for run in runs}, _run_name)
        bases = {arm.id: arm for arm in reads.baselines(store, run)}
        baseline = _pick("Baseline", bases, lambda arm: visible_text(arm.address, 80)) if bases else None
        st.html(markup.database_line(store.name))
    if baseline is None:
        st.info("The baseline of this run has no samples yet. Reload this page when the run has got so far.")
        return
    view = reads.run_view(store, run, baseline)
    st.html(markup.header(view))
    verdicts, forest, flips = st.tabs(["Verdicts", "Drop in points", "Flips"])
    with verdicts:
        page_verdicts.show(view)
    with forest:
        page_forest.show(view)
    with flips:
        page_flips.show(store, view)


def _pick(label: str, choices: dict[int, T], name: Callable[[T], str]) -> T:
    """Picks one of the records, told apart by id, so that a choice outlives a run that grows."""
    return choices[st.selectbox(label, list(choices), format_func=lambda number: name(choices[number]))]


def _run_name(run: RunRecord) -> str:
    state = "" if run.status == "finished" else f" ({run.status})"
    return visible_text(f"{run.id} · {run.experiment}{state}", 80)


if __name__ == "__main__":
    main()
