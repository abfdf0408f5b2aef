"""Server-side run time of every page on a large database: `python -m tests.benchmarks.dashboard [--samples N]`.

Pages run under Streamlit's AppTest in this process, without a browser. "First" is a page's first run with nothing kept
of its data, "again" the median of later ones; in brackets processor time, which other load on the machine moves less.
The import of the pages' libraries is a line of its own. Two runs are looked at: the newest, of large arms, and the
newest night of a history.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evalsvc.dashboards.launch import APP
from evalsvc.paths import cache_dir
from evalsvc.store.schema import REVISION
from tests.benchmarks.common import Spent, clocked
from tests.benchmarks.large import NIGHTS, write_large

AIM_S = 1.0
AGAIN = 5


def measured(database: Path, run: int, candidate: str, again: int) -> Iterator[tuple[str, Spent, Spent]]:
    """By page what its first run took, and the median of later ones."""
    import streamlit as st
    from streamlit.testing.v1 import AppTest

    from evalsvc.dashboards.pages import HOME, PAGES

    os.environ["EVALSVC_DB"] = str(database)
    for listed in PAGES:
        st.cache_data.clear()
        app = AppTest.from_file(str(APP), default_timeout=600)
        app.query_params["run"], app.query_params["candidate"] = str(run), candidate
        took = clock(app)
        if listed is not HOME:
            found = app._registered_pages.items()
            app._page_hash = next(name for name, page in found if page.get("url_pathname") == listed.path)
            st.cache_data.clear()
            took = clock(app)
        yield listed.title, took, _median([clock(app) for _ in range(again)])


def clock(app: Any) -> Spent:
    """One run of the page that is chosen; a page that fails is no measurement."""
    spent, _ = clocked(app.run)
    if app.exception or app.error:
        raise SystemExit(f"the page failed: {app.exception or app.error}")
    return spent


def _median(spent: list[Spent]) -> Spent:
    return Spent(statistics.median(s.wall for s in spent), statistics.median(s.cpu for s in spent))


def _shown(spent: Spent) -> str:
    return f"{spent.wall:.2f} ({spent.cpu:.2f})"


def main() -> None:
    """Writes the database where it is missing, measures, prints, and exits 1 when an aim is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--samples", type=int, default=2_000_000)
    options.add_argument("--db", type=Path, help="The database to write once and to read again; else in the cache.")
    arguments = options.parse_args()
    database = arguments.db or cache_dir() / f"benchmark-dashboard-{arguments.samples}-{REVISION}.sqlite"
    if not database.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        write_large(database, arguments.samples)
        print(f"{arguments.samples:,} samples written in {time.perf_counter() - began:.0f} s: {database}")
    began = time.perf_counter()
    import evalsvc.dashboards.app  # noqa: F401

    print(f"import of the pages and their libraries, once a server: {time.perf_counter() - began:.2f} s")
    sys.argv = ["app.py"]  # the page reads arguments, too
    slow = []
    printed = Table("page", "run", "first, s", "again, s", f"aim {AIM_S:g} s")
    with contextlib.redirect_stderr(None):
        for run, candidate in ((NIGHTS + 1, "int4"), (NIGHTS, "fp8-kv")):
            for title, first, later in measured(database, run, candidate, AGAIN):
                reached = max(first.wall, later.wall) < AIM_S
                slow += [] if reached else [title]
                printed.add_row(title, str(run), _shown(first), _shown(later), "reached" if reached else "missed")
    Console().print(printed)
    raise SystemExit(1 if slow else 0)


if __name__ == "__main__":
    main()
