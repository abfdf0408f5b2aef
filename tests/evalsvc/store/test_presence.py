"""The word for a run that is not finished: running while somebody answers it, interrupted once nobody does."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from evalsvc.store import lock, presence, queries, writer
from evalsvc.store.lock import locked_store, run_lock
from evalsvc.store.session import Store, open_store

ANSWER = """
import sys, time
from evalsvc.store.lock import locked_store
with locked_store(sys.argv[1]) as store:
    store.claim(int(sys.argv[2]))
    print("claimed", flush=True)
    time.sleep(60)
"""


def words(store: Store) -> list[tuple[str, set[tuple[str, str]]]]:
    """Of each run its status and those that its arms show of both."""
    found = []
    for run in queries.runs(store):
        found.append((run.status, {(arm.run_status, arm.status) for arm in queries.arms(store, run.id)}))
    return found


@pytest.fixture
def two(store, build) -> Store:
    """A database of two unfinished runs, of which the first has a finished arm."""
    first, second = build.run(), build.run()
    writer.finish_arm(store, build.arm(first, "base"), None, "declared")
    build.arm(first, "cand")
    build.arm(second, "base")
    return store


def test_a_run_is_running_while_its_process_lives_and_interrupted_once_it_was_killed(two, path):
    nobody = [
        ("interrupted", {("interrupted", "interrupted"), ("interrupted", "finished")}),
        ("interrupted", {("interrupted", "interrupted")}),
    ]
    assert words(two) == nobody
    process = subprocess.Popen([sys.executable, "-c", ANSWER, str(path), "2"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "claimed\n"
    assert words(two) == [nobody[0], ("running", {("running", "running")})]
    assert presence.answering(two) == {2}
    process.kill()
    process.wait()
    process.stdout.close()
    assert words(two) == nobody


def test_who_writes_without_answering_a_run_leaves_them_interrupted(two, path):
    with locked_store(path) as writing:
        assert {status for status, _ in words(two)} == {"interrupted"}
        writing.claim(1)
        writing.claim(2)
        assert {status for status, _ in words(two)} == {"running"}
    assert presence.answering(two) == frozenset()


def test_asking_refuses_no_run_that_starts_meanwhile(path, monkeypatch):
    with path.with_name(path.name + ".lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        monkeypatch.setattr(lock.time, "sleep", lambda seconds: fcntl.flock(asking, fcntl.LOCK_UN))
        with run_lock(path):
            pass


def test_where_nobody_can_tell_the_stored_word_stays(two, path, monkeypatch):
    def unreadable(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", unreadable)
    assert presence.answering(two) is None
    assert {status for status, _ in words(two)} == {"running"}


def test_on_a_server_the_claims_of_others_are_seen(postgres, build):
    url = postgres.new()
    with locked_store(url, create=True) as writing, open_store(url, read_only=True) as reading:
        build.store = writing
        first, second = build.run(), build.run()
        assert presence.answering(reading) == frozenset()
        writing.claim(second)
        assert presence.answering(reading) == {second}
        assert [run.status for run in queries.runs(reading)] == ["interrupted", "running"]
        assert first != second
    with open_store(url, read_only=True) as reading:
        assert {run.status for run in queries.runs(reading)} == {"interrupted"}
