"""What a person sees when the database is not what they think."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from evalsvc.errors import ConfigError, StoreError
from evalsvc.store import queries, writer
from evalsvc.store.lock import run_lock
from evalsvc.store.session import Location, open_store


def test_a_new_database_is_durable_and_checks_its_references(path, store):
    with store.session() as session:
        pragma = {name: session.execute(text(f"PRAGMA {name}")).scalar() for name in ("foreign_keys", "synchronous")}
        mode = session.execute(text("PRAGMA journal_mode")).scalar()
    assert (pragma, mode) == ({"foreign_keys": 1, "synchronous": 2}, "wal")
    with open_store(path, create=True) as again:
        assert queries.runs(again) == []


def test_a_url_and_odd_file_names_open_the_same_file(tmp_path: Path):
    odd = tmp_path / "a ?mode=memory #%41.db"
    with open_store(odd, create=True) as store:
        writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="b", seed=0)
    plain = tmp_path / "plain.db"
    odd.rename(plain)
    with open_store(f"sqlite:///{plain}", read_only=True) as store:
        assert len(queries.runs(store)) == 1


def test_read_only_never_writes(path, store, build):
    build.finished("base")
    with open_store(path, read_only=True, create=True) as reader:
        assert len(queries.runs(reader)) == 1
        with pytest.raises(StoreError, match="opened for reading only"):
            writer.finish_run(reader, 1)
        with pytest.raises(StoreError, match="is read-only here"), reader.session() as session:
            session.execute(text("DELETE FROM runs"))
        with reader.session() as session:
            assert session.execute(text("PRAGMA integrity_check")).scalars().all() == ["ok"]


def test_reading_goes_on_while_a_run_writes(path, store, build):
    run_id = build.run()
    with store.transaction() as session:
        session.execute(text("UPDATE runs SET seed = 5"))
        with open_store(path, read_only=True) as reader:
            assert queries.run_record(reader, run_id).seed == 1


def test_a_database_in_a_folder_nobody_can_write_is_read(path, store, build, monkeypatch):
    """SQLite cannot make its shared-memory file there; a finished database is then read as it lies."""
    build.finished("base")
    store.close()
    monkeypatch.setattr("os.access", lambda *_: False)
    with open_store(path, read_only=True) as reader:
        assert len(queries.runs(reader)) == 1
    assert not path.with_name(path.name + "-shm").exists()


def make_newer(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '0099'")


def make_foreign(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("CREATE TABLE songs (name TEXT)")


def make_text(path: Path) -> None:
    path.write_text("arms: []\n" * 100)


def make_garbage(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (make_newer, r"has schema 0099, made by a newer evalsvc; this one knows schemas up to 00\d\d: update evalsvc"),
        (make_foreign, "is a database of something else; name an evalsvc database or a new file"),
        (make_text, "is not a SQLite database; name an evalsvc database"),
        (make_garbage, "(is not a SQLite database|is damaged)"),
        (make_folder, "is a folder; give the database file"),
    ],
)
def test_a_file_that_is_not_ours_is_named_and_left_alone(path: Path, spoil, message, create):
    open_store(path, create=True).close()
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=f"store.db: {message}") as caught:
        open_store(path, create=create)
    assert "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_missing_file_or_folder_is_named(tmp_path: Path):
    with pytest.raises(StoreError, match=r"no.db: no such database; `evalsvc run FILE` makes one"):
        open_store(tmp_path / "no.db")
    with pytest.raises(StoreError, match=r"its folder .*/gone does not exist"):
        open_store(tmp_path / "gone" / "no.db", create=True)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="the file is empty"):
        open_store(tmp_path / "empty.db")
    with open_store(tmp_path / "empty.db", create=True) as store:
        assert queries.runs(store) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(StoreError, match="is not writable; name another path"):
        open_store(tmp_path / "new.db", create=True)


def test_a_locked_database_is_said_to_be_locked(path, store, build):
    run_id = build.run()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreError, match="is locked by another program"):
            build.arm(run_id)
    finally:
        other.close()
    assert build.arm(run_id) == 1


def test_a_full_disk_is_one_sentence_and_loses_nothing_stored(path, store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    writer.add_samples(store, run_id, arm_id, [build.sample(0)])

    def limit(connection, _record) -> None:
        connection.execute("PRAGMA max_page_count = 40")

    from sqlalchemy import event

    event.listen(store.engine, "connect", limit)
    with pytest.raises(StoreError, match="no space is left; free space and run the same command again"):
        writer.add_samples(
            store, run_id, arm_id, [build.sample(i, answer=os.urandom(5000).hex()) for i in range(1, 50)]
        )
    assert writer.done_keys(store, arm_id) == {build.sample(0).key}
    with store.session() as session:
        assert session.execute(text("PRAGMA integrity_check")).scalars().all() == ["ok"]


def test_a_password_is_in_no_message():
    url = "postgresql://me:secret@nowhere/db"
    assert Location.parse(url).name == "postgresql://me:***@nowhere/db"
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as unreadable:
        open_store("postgresql://me:secret@host:port:port/db")
    assert "secret" not in str(unreadable.value)


@pytest.mark.parametrize(
    "url", ["postgresql://h/d?password=hunter2", "postgresql://u:hunter2@h/d?sslpassword=hunter2&sslmode=require"]
)
def test_a_password_among_a_urls_options_is_not_shown(url):
    location = Location.parse(url)
    assert "hunter2" not in location.name and "hunter2" in str(location.url and location.url.query) + url
    assert ("sslmode=require" in location.name) == ("sslmode" in url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+psycopg2://h/d", "use a file, or postgresql://HOST/NAME"),
        ("postgresql+frob://h/d", "use a file, or postgresql://HOST/NAME"),
        ("sqlite+pysqlcipher:///a.db", "use a file, or postgresql://HOST/NAME"),
        ("sqlite:///a.db?mode=ro", "takes no options after `?`"),
        ("postgresql://h:port/d", "use sqlite:///PATH, or postgresql://USER@HOST:PORT/NAME"),
    ],
)
def test_a_url_that_would_be_read_otherwise_than_written_is_refused(url, says):
    with pytest.raises(ConfigError) as refused:
        Location.parse(url)
    assert says in str(refused.value)


@pytest.mark.parametrize("bad", ["", " ", "sqlite://", "sqlite:///:memory:", "://x"])
def test_an_unusable_address_is_a_config_error(bad):
    with pytest.raises(ConfigError):
        open_store(bad)


_CREATE = "import sys; from evalsvc.store.session import open_store; open_store(sys.argv[1], create=True).close()"


def test_processes_that_create_it_at_once_agree(path: Path):
    processes = [
        subprocess.Popen([sys.executable, "-c", _CREATE, str(path)], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [(p.communicate()[1], p.returncode) for p in processes] == [("", 0)] * 4
    with contextlib.closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM meta").fetchone() == (1,)


_HOLD = """
import sys, time
from evalsvc.store.lock import run_lock
with run_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_until_the_first_dies(path: Path):
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with (
        pytest.raises(StoreError, match=rf"another run is writing to .*store.db \(process {process.pid}\)"),
        run_lock(f"sqlite:///{path}"),
    ):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with run_lock(path):
        pass
    with run_lock(path):
        pass


def test_the_lock_in_a_missing_folder_is_one_sentence(tmp_path: Path):
    with pytest.raises(StoreError, match="No such file or directory"), run_lock(tmp_path / "gone" / "a.db"):
        pass


def test_on_a_server_reading_sees_one_state_and_writing_sees_what_others_committed(postgres):
    """A writer of one state would fail wherever another one was faster."""
    level = text("SHOW transaction_isolation")
    with open_store(postgres.new(), create=True) as store:
        with store.transaction() as session:
            assert session.scalar(level) == "read committed"
        with store.session() as session:
            assert session.scalar(level) == "repeatable read"
        with store.transaction() as session:
            assert session.scalar(level) == "read committed"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="no /proc/locks here")
def test_opening_a_database_again_keeps_the_locks_of_who_reads_it_here(path, store):
    """Without them another process takes itself for the last reader, and removes what this one reads from."""

    def held() -> int:
        place = f":{path.stat().st_ino} "
        return sum(place in line for line in Path("/proc/locks").read_text().splitlines())

    with store.session() as session:
        session.execute(text("SELECT count(*) FROM runs")).all()
        before = held()
        open_store(path, read_only=True).close()
        open_store(path).close()
        assert held() == before > 0


def test_a_second_run_on_a_server_is_refused_until_the_first_ends(postgres):
    url = postgres.new()
    for _ in range(2):
        with run_lock(url):
            with pytest.raises(StoreError, match="another run is writing to postgresql://"), run_lock(url):
                pass
            with open_store(url, create=True) as store:  # the run itself writes on
                assert queries.runs(store) == []


def test_a_signal_while_a_connection_is_closed_ends_the_command_without_a_traceback(tmp_path, monkeypatch, caplog):
    came = []

    def close(connection):
        connection.close()
        came.append(connection)
        if len(came) == 1:
            raise KeyboardInterrupt

    with open_store(tmp_path / "runs.sqlite", create=True) as store:
        monkeypatch.setattr(store.engine.dialect, "do_close", close)
        with pytest.raises(KeyboardInterrupt), store.session() as session:
            session.execute(text("SELECT 1"))
    assert came and not caplog.records
