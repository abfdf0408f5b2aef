"""The dashboard: pages over one database, read only. Started by `evalsvc dashboard`.

Run it alone with `python -m streamlit run dashboards/app.py -- --db PATH`.
"""

import os
import sys
from dataclasses import replace
from functools import partial

import streamlit as st

from evalsvc.dashboards import markup, reads
from evalsvc.dashboards.launch import database_address
from evalsvc.dashboards.pages import HOME, PAGES, Listed
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.selection import not_there, pick
from evalsvc.dashboards.text import visible_text
from evalsvc.dashboards.visitors import admitted
from evalsvc.errors import EvalsvcError
from evalsvc.store import queries
from evalsvc.store.failures import AGAIN
from evalsvc.store.session import Store, open_store

DEMO_COMMAND = "evalsvc dashboard --demo"


def main() -> None:
    """Opens the database and shows the page that was asked for; whatever is wrong becomes one sentence."""
    st.set_page_config(page_title="evalsvc", page_icon="⚖️", layout="wide")
    st.html(markup.PAGE_STYLE)
    if not admitted():
        return
    shown = {
        listed.path: st.Page(
            partial(_page, listed), title=listed.title, icon=listed.icon, url_path=listed.path, default=listed is HOME
        )
        for listed in PAGES
    }
    st.session_state["pages"] = shown
    st.navigation(list(shown.values())).run()


def _page(listed: Listed) -> None:
    address = database_address(sys.argv[1:], dict(os.environ))
    if address is None:
        st.info(
            f"No database is named. Start with `evalsvc dashboard --db PATH`, or set `EVALSVC_DB`. "
            f"To look around first: `{DEMO_COMMAND}`."
        )
        return
    try:
        with open_store(address, read_only=True) as store:
            view = _chosen(store)
            if view is not None:
                listed.show(store, view)
    except EvalsvcError as error:
        st.error("This page cannot be shown. What follows says why, and what to do.")
        st.code(visible_text(str(error).replace(AGAIN, "reload this page")), language=None, wrap_lines=True)


def _chosen(store: Store) -> RunView | None:
    """The run and baseline of the address, or None where there is nothing to look at yet, which is said."""
    runs = reads.main_runs(store)
    if not runs:
        st.info(
            f"The database holds no run with arms yet. `evalsvc run FILE` makes one; then reload this page. "
            f"A generated history to look around in: `{DEMO_COMMAND}`."
        )
        return None
    by_id = {str(run.id): run for run in runs}
    lost = not_there("run", by_id, "run of this database with arms")
    with st.sidebar:
        run = pick("Run", "run", by_id, _run_name)
        of_run, decided = queries.arms(store, run.id), queries.decisions(store, run.id)
        counts = reads.held(store, of_run)
        bases = {
            arm.address: arm
            for arm in reads.baselines(store, run, of_run, decided)
            if arm.run_id != run.id or counts[arm.id].samples
        }
        if bases:
            lost += not_there("baseline", bases, f"baseline that run {run.id} can be compared with")
            baseline = pick(
                "Baseline", "baseline", bases, lambda arm: arm.address, reads.usual_baseline(bases, decided)
            )
            counts |= reads.held(store, [baseline])
            view = reads.run_view(store, run, baseline, of_run, decided, counts)
        else:
            view = None
        if view is not None and view.candidates:
            names = [candidate.arm.name for candidate in view.candidates]
            lost += not_there("candidate", names, f"candidate of run {run.id}")
            view = replace(view, chosen=_pick_candidate(view))
        st.html(markup.database_line(store.name))
    for sentence in lost:
        st.warning(sentence)
    if view is None:
        st.info("The baseline of this run has no samples yet. Reload this page when the run has got so far.")
    return view


def _pick_candidate(view: RunView) -> reads.Candidate:
    """Of the candidates one; the first that regressed where the address names none."""
    by_name = {candidate.arm.name: candidate for candidate in view.candidates}
    worst = next((name for name, found in by_name.items() if found.word == "REGRESSED"), None)
    return pick("Candidate", "candidate", by_name, _candidate_name, worst)


def _candidate_name(candidate: reads.Candidate) -> str:
    symbol = markup.WORDS.get(candidate.word or "", markup.NOT_DECIDED)[0]
    return f"{symbol} {candidate.arm.name}"


def _run_name(run: reads.RunChoice) -> str:
    state = "" if run.status == "finished" else f" ({run.status})"
    return f"{run.id} · {run.began[:10]}{state} · {run.experiment}"


if __name__ == "__main__":
    main()
