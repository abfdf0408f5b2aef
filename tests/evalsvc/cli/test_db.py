"""`evalsvc db`: what is done to a database is said, and what cannot be done is one sentence."""

import json

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
