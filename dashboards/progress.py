"""A run that is still being computed: how far each arm has got, followed live."""

import streamlit as st

from evalsvc.dashboards import reads
from evalsvc.dashboards.reads import RunChoice, RunView
from evalsvc.dashboards.text import counted, markdown_free
from evalsvc.store.presence import RUNNING
from evalsvc.store.session import Store, open_store

EVERY_S = 5


def show_progress(store: Store, view: RunView) -> None:
    """A bar an arm, read anew every few seconds; what it ends with is said, too."""
    st.info(
        f"{state_of(view.run)} What stands below is of the samples so far, and no gate decides an unfinished arm. "
        "The bars follow the run; reload the page for everything else."
    )
    _bars(store.address, view)


def state_of(run: RunChoice) -> str:
    """Whether somebody answers an unfinished run, and what to do where nobody does."""
    if run.status == RUNNING:
        return "This run is in progress."
    return (
        "This run was interrupted. `evalsvc run FILE` goes on with it where file, model and engine are what they were, "
        "and starts another one where not."
    )


@st.fragment(run_every=EVERY_S)
def _bars(address: str, view: RunView) -> None:
    with open_store(address, read_only=True) as store:
        counts = reads.held(store, view.arms)
    for arm in view.arms:
        done = counts[arm.id].samples
        share = min(1.0, done / arm.expected) if arm.expected else 0.0
        errors = f", {counted(counts[arm.id].errors, 'error')}" if counts[arm.id].errors else ""
        st.progress(share, text=f"{markdown_free(view.named(arm))}: {done:,} of {arm.expected:,} samples{errors}")
