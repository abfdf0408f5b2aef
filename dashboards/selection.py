"""What is chosen lives in the address of the page, so that a link shows what its sender saw, on every page."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import streamlit as st

from evalsvc.dashboards.text import markdown_free, visible_text

T = TypeVar("T")
NAME_CHARACTERS = 80
# What there is to choose of each may hang on those before it.
_ORDER = (
    *("run", "baseline", "candidate", "frozen", "series"),
    *("direction", "suite", "family", "error", "stages", "prompt", "at_once"),
)


def pick(
    label: str,
    key: str,
    choices: Mapping[str, T],
    name: Callable[[T], str],
    default: str | None = None,
    *,
    width: int | None = None,
) -> T:
    """A select box whose choice is the address's `key`, kept across pages.

    Args:
        label: Above the box.
        key: Of the address; also the box's own.
        choices: By the text that stands in the address, at least one.
        name: How a choice is shown.
        default: Chosen where the address names none that there is; the first without it.
        width: Of the box, pixels; as wide as there is room without it.
    """
    options = list(choices)
    kept = f"kept_{key}"
    wanted = next((w for w in (st.query_params.get(key), st.session_state.get(kept)) if w in choices), None)
    chosen = str(wanted or (default if default in choices else options[0]))
    box = f"box_{key}"
    st.session_state[box] = chosen
    st.session_state[kept] = chosen
    if st.query_params.get(key) != chosen:
        st.query_params[key] = chosen
    st.selectbox(
        label,
        options,
        key=box,
        format_func=lambda option: visible_text(name(choices[option]), NAME_CHARACTERS),
        on_change=_follow,
        args=(key, box),
        width=width or "stretch",
    )
    return choices[chosen]


def pick_text(
    label: str, key: str, choices: list[str], shown: Callable[[str], str] = str, *, width: int | None = None
) -> str:
    """As `pick`, of texts that are their own names."""
    return pick(label, key, {choice: choice for choice in choices}, shown, width=width)


def not_there(key: str, choices: Collection[str], what: str) -> list[str]:
    """What to say of an address that names something there is none of, before `pick` shows another: a sentence or none.

    Args:
        key: Of the address.
        choices: What there is.
        what: The kind of thing, with where it would be.
    """
    named = st.query_params.get(key)
    if not named or named in choices:
        return []
    return [
        f'The address of this page names "{markdown_free(named)}": no {what}. Another is shown; the link may be old.'
    ]


def _follow(key: str, box: str) -> None:
    st.query_params[key] = st.session_state[box]
    for narrower in _ORDER[_ORDER.index(key) + 1 :] if key in _ORDER else ():  # kept where the new choice has it, too
        st.query_params.pop(narrower, None)
    for narrower in ("sample", "page"):  # of what was chosen before
        if key != narrower:
            st.query_params.pop(narrower, None)
            st.session_state.pop(f"kept_{narrower}", None)


def linked(**changed: object) -> dict[str, str]:
    """The address's choices with some changed, for links to other pages."""
    kept = {key: value for key in ("run", "baseline", "candidate") if (value := st.query_params.get(key))}
    return kept | {key: str(value) for key, value in changed.items()}
