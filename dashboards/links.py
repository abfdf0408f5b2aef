"""Links from page to page that carry the choices."""

import streamlit as st

from evalsvc.dashboards.selection import linked
from evalsvc.dashboards.text import markdown_free


def go(path: str, label: str, **changed: object) -> None:
    """A link to a page with the address's choices, some of them changed.

    Args:
        path: The page, as `pages.Listed.path`.
        label: What stands on the link.
        changed: Choices of the address to set there.
    """
    page = st.session_state["pages"][path]
    st.page_link(page, label=markdown_free(label), icon=":material/arrow_forward:", query_params=linked(**changed))
