"""The word for a run that is not finished: running while somebody answers it, interrupted once nobody does."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evalsvc.dashboards import reads
from evalsvc.errors import StoreError
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


def test_a_run_that_begins_is_claimed_before_anybody_can_see_it(two, path, build):
    with locked_store(path) as writing:
        claim, there = writing.claim, []

        def watched(run_id: int) -> None:
            claim(run_id)
            there.append(len(queries.runs(two)))

        writing.claim, build.store = watched, writing
        third = build.run()
        assert there == [2] and presence.answering(two) == {third}
        assert {run.id: run.status for run in queries.runs(two)}[third] == "running"


def test_asking_refuses_no_run_that_starts_meanwhile(path, monkeypatch):
    with path.with_name(path.name + ".lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        monkeypatch.setattr(lock.time, "sleep", lambda seconds: fcntl.flock(asking, fcntl.LOCK_UN))
        with run_lock(path):
            pass


def test_a_process_that_no_longer_lives_is_not_named_as_the_one_that_writes(path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for holder, named in ((gone.pid, False), (os.getpid(), True)):
        with path.with_name(path.name + ".lock").open("w") as writing:
            writing.write(f"{holder} 1")
            writing.flush()
            fcntl.flock(writing, fcntl.LOCK_EX)
            with pytest.raises(StoreError, match="another run is writing") as error, run_lock(path):
                pass
            assert (f"(process {holder})" in str(error.value)) is named


def test_asking_for_a_while_refuses_no_run(path, monkeypatch):
    """Many who look, one after the other, may be met before the lock is free."""
    met = []
    with path.with_name(path.name + ".lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        monkeypatch.setattr(lock.time, "monotonic", lambda: 0.02 * len(met))

        def sleep(seconds: float) -> None:
            met.append(seconds)
            if len(met) == 50:
                fcntl.flock(asking, fcntl.LOCK_UN)

        monkeypatch.setattr(lock.time, "sleep", sleep)
        with run_lock(path):
            assert len(met) == 50


def test_a_link_to_a_database_has_the_databases_lock(two, path, tmp_path):
    link = tmp_path / "elsewhere" / "link.sqlite"
    link.parent.mkdir()
    link.symlink_to(path)
    with locked_store(f"sqlite:///{link}") as writing:
        writing.claim(1)
        assert presence.answering(two) == {1}
        with pytest.raises(StoreError, match="another run is writing"), run_lock(path):
            pass
    with locked_store(path) as writing, open_store(link, read_only=True) as reading:
        writing.claim(2)
        assert presence.answering(reading) == {2}
    assert not list(link.parent.glob("*.lock")) and path.with_name(path.name + ".lock").exists()


@pytest.mark.parametrize("read", [queries.runs, queries.arms, reads.main_runs])
def test_a_run_that_ends_or_begins_while_its_row_is_read_is_not_interrupted(two, monkeypatch, read):
    """The lock is looked at before the rows, and again for one that is running by then."""
    looks = iter([{1}, {2}])
    monkeypatch.setattr(presence, "answering", lambda _: frozenset(next(looks)))
    found = {getattr(one, "run_status", one.status) for one in read(two)}
    assert found == {"running"}


def test_where_nobody_can_tell_the_stored_word_stays(two, path, monkeypatch):
    def unreadable(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", unreadable)
    assert presence.answering(two) is None
    assert {status for status, _ in words(two)} == {"running"}


def test_on_a_server_the_claims_of_others_are_seen(postgres, build):
    url = postgres.new()
    with open_store(url, create=True) as before:
        build.store = before
        first, second = build.run(), build.run()
    with locked_store(url) as writing, open_store(url, read_only=True) as reading:
        assert presence.answering(reading) == frozenset()
        writing.claim(second)
        assert presence.answering(reading) == {second}
        assert [run.status for run in queries.runs(reading)] == ["interrupted", "running"]
        build.store = writing
        third = build.run()
        assert presence.answering(reading) == {second, third} and first not in (second, third)
    with open_store(url, read_only=True) as reading:
        assert {run.status for run in queries.runs(reading)} == {"interrupted"}


def test_a_server_that_follows_another_cannot_tell(postgres):
    """It does not know of the other's locks. Here a function in front of the server's own says that it follows."""
    import psycopg

    url = postgres.new()
    with locked_store(url, create=True), open_store(url, read_only=True) as reading:
        assert presence.answering(reading) == frozenset()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE FUNCTION public.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT true'")
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog')  # pyright: ignore[reportArgumentType, reportCallIssue]
    with open_store(url, read_only=True) as reading:
        assert presence.answering(reading) is None
