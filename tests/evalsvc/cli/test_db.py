"""`evalsvc db`: what is done to a database is said, and what cannot be done is one sentence."""

import contextlib
import json
import sqlite3

from evalsvc.store.schema import REVISION
from evalsvc.store.session import open_store


def test_upgrade_says_what_the_database_is_now_and_where_the_backup_is(evalsvc, tmp_path):
    path = tmp_path / "runs.sqlite"
    open_store(path, create=True).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("DROP TABLE alembic_version")
        raw.execute("UPDATE meta SET value = '1'")
        raw.execute("DROP TABLE turns")
    code, out, _ = evalsvc("db", "upgrade", "--db", path, "--json")
    assert code == 0 and json.loads(out) == {
        "schema": "evalsvc.db-upgrade/1",
        "database": str(path),
        "revision": REVISION,
        "backup": f"{path}.0000.backup",
    }
    assert evalsvc("db", "upgrade", "--db", path) == (0, f"{path} has schema {REVISION}\n", "")
