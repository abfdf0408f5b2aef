"""`evalsvc db`: what is done to a database is said, and what cannot be done is one sentence."""

import contextlib
import json
import sqlite3

import pytest
from sqlalchemy import create_engine, text

from evalsvc.store import writer
from evalsvc.store.migrations import migrate
from evalsvc.store.schema import REVISION
from evalsvc.store.session import open_store

from .conftest import HOSTILE


def test_upgrade_says_what_the_database_is_now_and_where_the_backup_is(evalsvc, tmp_path):
    path = tmp_path / "runs.sqlite"
    with create_engine(f"sqlite:///{path}").begin() as connection:
        migrate(connection, "0001")
        connection.execute(text("DROP TABLE alembic_version"))
        connection.execute(text("INSERT INTO meta VALUES ('schema_version', '1')"))
    code, out, _ = evalsvc("db", "upgrade", "--db", path, "--json")
    assert code == 0 and json.loads(out) == {
        "schema": "evalsvc.db-upgrade/1",
        "database": str(path),
        "revision": REVISION,
        "backup": f"{path}.0000.backup",
    }
    assert evalsvc("db", "upgrade", "--db", path) == (0, f"{path} has schema {REVISION}\n", "")


def test_a_whole_database_is_checked_counted_and_vacuumed(evalsvc, evalsvc_json, db):
    assert evalsvc("db", "check", "--db", db) == (0, f"{db} is whole\n", "")
    code, document = evalsvc_json("db", "stats", "--db", db)
    assert code == 0 and document["rows"]["samples"] == 480 and document["bytes"] > 100_000
    code, out, _ = evalsvc("db", "vacuum", "--db", db)
    assert code == 0 and out.startswith(f"{db}: ") and " MiB became " in out
    assert "samples" in evalsvc("db", "stats", "--db", db)[1]


def test_damage_is_named_and_exits_2(evalsvc, evalsvc_json, db):
    with create_engine(f"sqlite:///{db}").begin() as connection:
        connection.execute(text("UPDATE arms SET stored = 7 WHERE id = 1"))
    says = "arm 1:base counts 7 samples with 0 errors, and has 120 with 0"
    assert evalsvc("db", "check", "--db", db) == (2, says + "\n", "")
    assert evalsvc_json("db", "check", "--db", db)[1]["problems"] == [says]


def test_pruning_says_first_and_does_it_when_told(evalsvc, evalsvc_json, db, add_arm):
    with open_store(db) as store:
        for _ in range(2):
            later = {"experiment": HOSTILE, "experiment_hash": "x", "resolved": {}, "baseline": "base", "seed": 0}
            run_id = writer.open_run(store, **later)
            add_arm(store, run_id, "base")
            writer.finish_run(store, run_id)
    code, out, err = evalsvc("db", "prune", "--keep", 1, "--db", db)
    assert (code, err) == (0, "") and "run 1 would go: e[red]\\x1b[31m, 360 samples" in out and "--yes does it" in out
    evalsvc("baseline", "promote", "1:good", "--name", "prod", "--why", "w", "--db", db)
    code, document = evalsvc_json("db", "prune", "--keep", 1, "--yes", "--db", db)
    assert (document["done"], document["kept"]) == (True, {"1": "promoted as @prod"})
    assert [run["run"] for run in document["runs"]] == [3] and document["rows"]["samples"] == 120
    assert evalsvc("db", "check", "--db", db)[0] == 0
    assert evalsvc("db", "prune", "--keep", 0, "--db", db)[0] == 2


def _changed(path, statement):
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(statement)


def _newer(path):
    open_store(path, create=True).close()
    _changed(path, "UPDATE alembic_version SET version_num = '9999'")


WRONG = {
    "missing": (lambda path: None, "no such database"),
    "folder": (lambda path: path.mkdir(), "is a folder; give the database file"),
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "text": (lambda path: path.write_text("no database at all " * 40), "is not a SQLite database"),
    "newer": (_newer, "has schema 9999, made by a newer evalsvc"),
    "foreign": (lambda path: _changed(path, "CREATE TABLE recipes (id INTEGER)"), "is a database of something else"),
}


@pytest.mark.parametrize("what", WRONG)
def test_beside_what_is_no_database_nothing_is_made_and_it_is_left_as_it_was(evalsvc, tmp_path, what):
    make, says = WRONG[what]
    path = tmp_path / "d" / "runs.sqlite"
    path.parent.mkdir()
    make(path)
    before = {p.name: p.is_file() and p.read_bytes() for p in path.parent.iterdir() if p.suffix == ".sqlite"}
    asked = [("vacuum",), ("prune", "--keep", 1, "--yes"), ("prune", "--keep", 1), ("upgrade",), ("check",), ("stats",)]
    for arguments in asked:
        code, out, err = evalsvc("db", *arguments, "--db", path)
        assert (code, out) == (2, "") and says in err and str(path) in err and err.count("\n") == 1, arguments
    left = {p.name for p in path.parent.iterdir() if not p.name.endswith(("-wal", "-shm"))}
    assert left == set(before)
    assert all(not held or (path.parent / name).read_bytes() == held for name, held in before.items())


@pytest.mark.parametrize("what", ["folder", "text", "newer", "foreign"])
def test_what_would_make_a_database_leaves_no_lock_beside_what_is_none(evalsvc, tmp_path, what):
    make, says = WRONG[what]
    path, table = tmp_path / "d" / "runs.sqlite", tmp_path / "t.csv"
    path.parent.mkdir()
    make(path)
    table.write_text("item,base,other\ni1,1,0\ni2,0,1\n")
    code, out, err = evalsvc("import", "t", "--baseline", "base", "--table", table, "--db", path)
    assert (code, out) == (2, "") and says in err
    assert not list(path.parent.glob("*.lock"))
