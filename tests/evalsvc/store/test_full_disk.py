"""A disk that is really full, and one that is really read-only: one sentence, nothing lost, nothing damaged."""

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from evalsvc.cli.main import main
from evalsvc.errors import StoreError
from evalsvc.store import queries, writer
from evalsvc.store.session import open_store

from .conftest import Build


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`disk(options)`: mounts a small disk of its own, or mounts it again with other options; gives its folder."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        again = ["-o", f"remount,{options}"] if folder.is_mount() else ["-o", options]
        done = subprocess.run(["mount", "-t", "tmpfs", *again, "tmpfs", str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def sound(path: Path, mode: str = "ro") -> bool:
    """Whether SQLite itself finds the file whole."""
    with closing(sqlite3.connect(f"file:{path}?mode={mode}", uri=True)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_what_was_stored_before_the_disk_was_full_stays_and_more_space_goes_on(disk):
    path = disk("size=1m") / "r.sqlite"
    with open_store(path, create=True) as store:
        build = Build(store)
        arm_id = build.arm(run_id := build.run())

        def add(n: int) -> int:
            rows = [build.sample(f"{n}-{i}", answer=os.urandom(3000).hex()) for i in range(8)]
            return writer.add_samples(store, run_id, arm_id, rows)

        stored = 0
        with pytest.raises(StoreError, match=r"r.sqlite: cannot grow, no space is left; free space and run"):
            for n in range(100):
                stored += add(n)
        assert 8 <= stored < 800
        assert len(writer.done_keys(store, arm_id)) == stored, "a batch is there whole or not at all"
        assert sound(path)
        with pytest.raises(StoreError, match="no space is left"):
            add(200)
        disk("size=8m")
        assert add(300) == 8 and len(writer.done_keys(store, arm_id)) == stored + 8
    assert sound(path)


def test_a_disk_that_is_full_at_once_is_said_when_the_database_is_made(disk):
    folder = disk("size=16k")
    with pytest.raises(StoreError, match=r"r.sqlite: cannot grow, no space is left"):
        open_store(folder / "r.sqlite", create=True)
    disk("size=1m")
    with open_store(folder / "r.sqlite", create=True) as store:
        assert queries.runs(store) == []


def test_a_read_only_disk_is_read_and_refuses_to_be_written(disk, capsys):
    path = disk("size=4m") / "r.sqlite"
    with open_store(path, create=True) as store:
        Build(store).finished("base")
    before = path.read_bytes()
    disk("ro")
    with open_store(path, read_only=True) as store:
        assert [run.arms for run in queries.runs(store)] == [("base",)]
    with (
        pytest.raises(StoreError, match="is read-only here; make the file and its folder writable"),
        open_store(path) as store,
    ):
        Build(store).run()
    for command in (["baseline", "promote", "base", "--name", "n", "--why", "w"], ["db", "vacuum"]):
        with pytest.raises(SystemExit) as left:
            main([*command, "--db", str(path)])
        said = capsys.readouterr().err
        assert left.value.code == 2 and "read-only" in said and said.count("\n") == 1, said
    assert path.read_bytes() == before and sound(path, "ro&immutable=1")
