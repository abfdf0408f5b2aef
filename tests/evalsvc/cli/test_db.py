"""`evalsvc db`: what is done to a database is said, and what cannot be done is one sentence."""

import json

from sqlalchemy import create_engine, text

from evalsvc.store.migrations import migrate
from evalsvc.store.schema import REVISION


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
