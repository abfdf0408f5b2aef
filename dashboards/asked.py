"""Work that would hold a page up is done when somebody asks for it, and then kept as everything else is."""

import streamlit as st

AT_ONCE_SAMPLES = 10_000  # read and compared in well under a second
SAMPLES_A_SECOND = 10_000


def when_asked(samples: int, what: str, key: str) -> bool:
    """Whether to read so many samples now: where they are few, or once the button was pressed.

    Args:
        samples: How many would be read.
        what: What they would give, as it stands after "Compute".
        key: Of the choice; another choice asks again.
    """
    if samples <= AT_ONCE_SAMPLES or key in st.session_state.get("asked", ()):
        return True
    st.button(f"Compute {what}", on_click=_ask, args=(key,), icon=":material/play_arrow:")
    st.caption(f"Reads {samples:,} samples: about {max(1, round(samples / SAMPLES_A_SECOND)):,} s, once.")
    return False


def _ask(key: str) -> None:
    st.session_state["asked"] = {*st.session_state.get("asked", ()), key}
