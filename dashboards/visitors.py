"""Who may look: everybody on this machine, or the listed visitors who logged in where a login is configured.

Streamlit's own secrets file configures it: `[auth]` the OpenID Connect provider, as `st.login` reads it, and
`visitors` in `[evalsvc]` who may see the pages: addresses, and domains with an @ before them. What is configured by
half lets nobody in.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit import config

from evalsvc.dashboards.text import markdown_free


def admitted() -> bool:
    """Whether the pages are shown to this visitor; if not, the page says why and what to do."""
    found, problem = _configured()
    if problem:
        st.error(f"Nobody is let in: {problem}.")
        return False
    if found is None:
        return True
    if not st.user.get("is_logged_in", False):
        st.title("evalsvc")
        st.info("These pages are for listed visitors.")
        st.button("Log in", on_click=st.login, type="primary")
        return False
    reason = why_not(st.user.to_dict(), found)
    if reason:
        st.error(f"You are logged in, but {markdown_free(reason, 200)}.")
    with st.sidebar:
        st.button(f"Log out {markdown_free(str(st.user.get('email') or ''))}", on_click=st.logout)
    return not reason


def why_not(claims: Mapping[str, Any], visitors: Sequence[str]) -> str:
    """Why somebody with these claims of an identity token may not look; empty where they may.

    Args:
        claims: As the provider gave them.
        visitors: Addresses, and domains that begin with an @; case does not count.
    """
    address = claims.get("email")
    if not isinstance(address, str) or address.count("@") != 1:
        return "the provider named no e-mail address"
    if claims.get("email_verified", True) not in (True, "true"):
        return f"the provider has not verified {address}"
    address = address.casefold()
    allowed = {visitor.casefold() for visitor in visitors}
    if address in allowed or "@" + address.partition("@")[2] in allowed:
        return ""
    return f"{address} is not among the visitors; ask whoever runs this dashboard"


def _configured() -> tuple[list[str] | None, str]:
    """The visitors, None where no login is configured; and what is wrong with the configuration, or nothing."""
    if not st.secrets.load_if_toml_exists():
        there = [path for path in config.get_option("secrets.files") if Path(path).exists()]
        return None, "Streamlit's secrets file cannot be read; mend it, or take it away" if there else ""
    own = st.secrets.get("evalsvc", {})
    listed = own.get("visitors") if isinstance(own, Mapping) else None
    if "auth" not in st.secrets:
        return None, "the secrets file lists visitors and no `[auth]` to know them by" if listed else ""
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not all(isinstance(v, str) for v in listed):
        listed = None
    if not listed:
        return None, "the secrets file has `[auth]` and no list `visitors` in `[evalsvc]`"
    if find_spec("authlib") is None:
        return None, "a login needs Authlib: `pip install 'evalsvc[login]'`"
    return list(listed), ""
