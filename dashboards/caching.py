"""Results kept for as long as what they were read from cannot change: by finished arm, never by time."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store

T = TypeVar("T")


def kept(store: Store, arms: Sequence[ArmRecord], what: str, compute: Callable[[], T]) -> T:
    """`compute()`, once for each state of finished arms; every time while one of them still runs.

    Args:
        store: Where the arms are.
        arms: What the result is read from, and nothing else.
        what: Name of the result, with whatever else it depends on.
        compute: Reads it.
    """
    if any(arm.status != "finished" for arm in arms):
        return compute()
    key = (what, *_file(store), *(_state(arm) for arm in arms))
    return _kept(key, compute)


@st.cache_data(max_entries=512, show_spinner=False)
def _kept(key: tuple[Any, ...], _compute: Callable[[], Any]) -> Any:
    return _compute()


def _state(arm: ArmRecord) -> str:
    return json.dumps([arm.id, arm.run_id, arm.fingerprint, arm.rescored], sort_keys=True)


def _file(store: Store) -> tuple[Any, ...]:
    """The database, and which file it is: another one may take its place under the same path."""
    try:
        found = Path(store.name).stat()
    except OSError:
        return (store.address,)
    return (store.address, found.st_dev, found.st_ino)
