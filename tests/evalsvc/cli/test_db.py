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
