"""Texts on a page: as text alone, cut where they are long, with the cut said; tables; what there is not."""

from typing import Any

import pandas as pd
import streamlit as st

from evalsvc.dashboards.text import SHOWN_CHARACTERS, hidden_characters, visible_text

NOT_RECORDED = "(no text recorded)"
WHOLE_ROWS = 30  # a longer table scrolls in its own box
LONG_CHARACTERS, LONG_LINES, LONG_HEIGHT_PX = 900, 14, 320  # a longer text scrolls in its own box


def no_candidate() -> None:
    """What stands on a page of candidates where there is none."""
    st.info("This run has no arm beside the baseline. Add arms to the experiment, then `evalsvc run FILE`.")


def show_text(text: str, nothing: str = "(empty)") -> None:
    """A text that somebody else wrote; `nothing` stands for one without a character."""
    if not text:
        st.caption(nothing)
        return
    shown = visible_text(text)
    tall = len(shown) > LONG_CHARACTERS or shown.count("\n") > LONG_LINES
    with st.container(height=LONG_HEIGHT_PX, border=False) if tall else st.container():
        st.code(shown, language=None, wrap_lines=True)
    if hidden_characters(text):
        st.caption(f"first {SHOWN_CHARACTERS:,} of {len(text):,} characters; the database holds them all")


def show_answer(answer: str, prompt: str, finish: str | None) -> None:
    """An answer. Of arms that came without texts, the prompts too, nobody knows that an answer is empty."""
    show_text(answer, "(empty)" if prompt or finish else NOT_RECORDED)


def show_table(frame: pd.DataFrame, columns: dict[str, Any] | None = None) -> None:
    """A table to sort, whole where it is short; an unknown value is an empty cell, and never 0."""
    height = "content" if len(frame) <= WHOLE_ROWS else "auto"
    st.dataframe(frame, height=height, hide_index=True, column_config=columns, placeholder="")
