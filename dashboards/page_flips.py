"""View 3: the answers behind the numbers. Whatever a model wrote is shown as text, never as markup."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from evalsvc.dashboards import markup
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.text import SHOWN_CHARACTERS, hidden_characters, visible_text
from evalsvc.store import queries
from evalsvc.store.session import Store

PER_PAGE = 10
LONG_CHARACTERS, LONG_LINES, LONG_HEIGHT_PX = 900, 14, 320  # a longer text scrolls in its own box
_ALL = "all"
_DIRECTIONS = {"lost and gained": None, "▼ lost": "lost", "▲ gained": "gained"}


def show(store: Store, view: RunView) -> None:
    """Pickers, then the flips of one candidate, ten a page."""
    if not view.candidates:
        st.info("This run has no arm beside the baseline.")
        return
    names = [candidate.arm.name for candidate in view.candidates]
    columns = st.columns([2, 2, 2, 2])
    name = columns[0].selectbox("Candidate", names, format_func=_name)
    candidate = view.candidates[names.index(name)]
    found = queries.flips(store, view.baseline, candidate.arm)
    suite = columns[1].selectbox("Suite", [_ALL, *sorted({flip["suite"] for flip in found})], format_func=_name)
    in_suite = [flip for flip in found if suite in (_ALL, flip["suite"])]
    family = columns[2].selectbox("Family", [_ALL, *sorted({flip["family"] for flip in in_suite})], format_func=_name)
    in_family = [flip for flip in in_suite if family in (_ALL, flip["family"])]
    wanted = _DIRECTIONS[columns[3].selectbox("Direction", list(_DIRECTIONS))]
    chosen = [flip for flip in in_family if wanted in (None, flip["direction"])]
    st.html(markup.candidate_head(candidate))
    lost = sum(flip["direction"] == "lost" for flip in in_family)
    counted = {(row.suite, row.family, row.through) for row in candidate.rows if row.counted and not row.blind}
    beside = sum((flip["suite"], flip["family"], flip["through"]) not in counted for flip in in_family)
    uncounted = f" ({beside} of them in rows that the verdict does not count)" if beside and candidate.rows else ""
    st.caption(f"{lost} lost, {len(in_family) - lost} gained{uncounted}; {len(chosen)} shown by this choice")
    if not chosen:
        st.info("No item flipped in this choice.")
        return
    for flip in _page(chosen):
        _show_flip(flip, view.baseline.name, candidate.arm.name)


def _name(text: str) -> str:
    return visible_text(text, 80)


def _page(flips: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    pages = -(-len(flips) // PER_PAGE)
    if pages == 1:
        return flips
    page = st.selectbox("Page", range(1, pages + 1), format_func=lambda number: f"{number} of {pages}")
    return flips[(page - 1) * PER_PAGE : page * PER_PAGE]


def _show_flip(flip: Mapping[str, Any], baseline: str, candidate: str) -> None:
    with st.container(border=True):
        st.html(markup.flip_head(flip))
        left, right = st.columns(2)
        with left:
            _show_answer(flip, "baseline", baseline)
        with right:
            _show_answer(flip, "candidate", candidate)
        with st.expander("Prompt"):
            _show_text(flip["prompt"])


def _show_answer(flip: Mapping[str, Any], side: str, name: str) -> None:
    right = (flip["direction"] == "lost") == (side == "baseline")
    st.html(markup.answer_head(name, right=right, finish=flip[f"{side}_finish"], error=flip[f"{side}_error"]))
    _show_text(flip[f"{side}_answer"])


def _show_text(text: str) -> None:
    if not text:
        st.caption("(empty)")
        return
    shown = visible_text(text)
    tall = len(shown) > LONG_CHARACTERS or shown.count("\n") > LONG_LINES
    with st.container(height=LONG_HEIGHT_PX, border=False) if tall else st.container():
        st.code(shown, language=None, wrap_lines=True)
    hidden = hidden_characters(text)
    if hidden:
        st.caption(f"first {SHOWN_CHARACTERS:,} of {len(text):,} characters; the database holds them all")
