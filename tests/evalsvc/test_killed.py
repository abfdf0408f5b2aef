"""The runner killed at whatever moment the clock shows, again and again: it ends as if nobody had.

The target answers from memory, in another order in every process, so that thirty runs take seconds.
"""

import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from evalsvc.cli.run_report import decide_run
from evalsvc.execution import execute
from evalsvc.policy import Policy
from evalsvc.prepared import prepare
from evalsvc.store.lock import run_lock
from evalsvc.store.session import open_store

ITEMS = 150


class Silent:
    """A reporter that says nothing."""

    def note(self, text: str) -> None:
        pass

    def progress(self, label: str) -> Callable[..., None]:
        return lambda *told: None


@pytest.fixture
def run(tmp_path, in_memory) -> Callable[[Path], None]:
    """`run(database)`: an experiment of three arms and its A/A to its decisions, in this process."""
    prepared = prepare(in_memory(tmp_path, ITEMS, {"base": 0, "worse": 25, "kv": 1}))

    def call(database: Path) -> None:
        with run_lock(database, wait=True), open_store(database, create=True) as store:
            decide_run(store, execute(prepared, store, Silent()), Policy(name="p", margin_points=3.0))

    return call


def killed(call: Callable[[], None], seconds: float) -> bool:
    """Runs `call` in a copy of this process and kills it after a while; False when it came to its end before."""
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 3)
    ends = os.pidfd_open(child)
    select.select([ends], [], [], seconds)
    os.close(ends)
    os.kill(child, signal.SIGKILL)  # of one that ended nothing is left but its status
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the copy ended with status {status}"
    return status == signal.SIGKILL


def timed(call: Callable[[], None]) -> float:
    """Seconds of a call."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def said(database: Path) -> list[str]:
    """The last decision about each candidate, as it was stored."""
    query = "SELECT decision FROM decisions WHERE id IN (SELECT max(id) FROM decisions GROUP BY candidate_arm_id)"
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sorted(decision for (decision,) in connection.execute(query))


def stored(database: Path) -> int:
    """Samples in a database that may not be there yet."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM samples").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_killed_at_thirty_random_moments_and_gone_on_with_each_time(run, contents, tmp_path):
    took = timed(lambda: run(tmp_path / "whole.sqlite"))
    whole = contents(tmp_path / "whole.sqlite"), said(tmp_path / "whole.sqlite")
    assert [json.loads(text)["verdict"] for text in whole[1]].count("REGRESSED") == 1
    rng, deaths, number, between = random.Random(11), 0, 0, set[int]()
    while deaths < 30 or len(between - {0, ITEMS * 4}) < 5:  # moments between the first sample and the last
        database, number = tmp_path / f"{number}.sqlite", number + 1
        while killed(lambda database=database: run(database), rng.uniform(0, took)):
            deaths += 1
            between.add(stored(database))
        assert (contents(database), said(database)) == whole, f"database {number}, after {deaths} kills in all"


def test_runners_that_start_at_once_wait_for_each_other_and_double_nothing(run, contents, tmp_path):
    run(tmp_path / "whole.sqlite")
    database = tmp_path / "shared.sqlite"
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            try:
                run(database)
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 3)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert contents(database) == contents(tmp_path / "whole.sqlite")
    assert stored(database) == 4 * ITEMS and said(database) == said(tmp_path / "whole.sqlite")
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT kind, status FROM runs").fetchall() == [
            ("main", "finished"),
            ("aa", "finished"),
        ]
