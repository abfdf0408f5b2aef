"""Every revision becomes the newest one, on both databases, with rows in every table; what comes out is `schema.py`."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Boolean, Connection, Float, Integer, LargeBinary, MetaData, create_engine, inspect, select, text

from evalsvc.errors import StoreError
from evalsvc.store import migrations, queries, revisions
from evalsvc.store import session as opening
from evalsvc.store.migrations import FOLDER, migrate
from evalsvc.store.schema import READABLE_FROM, REVISION, Base
from evalsvc.store.session import Location, Store, open_store, store_revision, upgrade_store

REVISIONS = [path.name[:4] for path in sorted((FOLDER / "versions").glob("[0-9]*.py"))]
LATE_TABLES = {"baselines", "measurements", "turns"}  # that databases of revision 0000 may have or lack
SERVERS = ["sqlite", "postgresql"]


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """`new_url(kind)`: the URL of a database that is empty, or of a file that is not there."""
    count = iter(range(99))

    def make(kind: str) -> str:
        if kind == "postgresql":
            return request.getfixturevalue("postgres").new()
        return f"sqlite:///{tmp_path / f'{next(count)}.sqlite'}"

    return make


@contextlib.contextmanager
def writing(url: str) -> Any:
    """A connection in a transaction, of an engine that is none of the store's."""
    location = Location.parse(url)
    engine = create_engine(location.url or url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def fill(connection: Connection) -> None:
    """A row in every table of a database, each referring to the first rows of others."""
    tables = MetaData()
    tables.reflect(connection)
    for table in tables.sorted_tables:
        if table.name in ("alembic_version", "meta"):
            continue
        row: dict[str, Any] = {}
        for column in table.columns:
            if column.foreign_keys and column.nullable:
                continue
            if column.primary_key and isinstance(column.type, Integer):
                continue
            row[column.name] = value_for(column)
        connection.execute(table.insert().values(row))


def value_for(column: Any) -> Any:
    if column.foreign_keys:
        (key,) = column.foreign_keys
        return 1 if isinstance(column.type, Integer) else value_for(key.column)
    if isinstance(column.type, Boolean):
        return True
    if isinstance(column.type, LargeBinary):
        return b"\0\xff"
    if isinstance(column.type, Integer | Float):
        return 1
    return {"k": ["é", 0.1]} if column.type.python_type is dict else f"text of {column.name}"


def rows(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    tables = MetaData()
    tables.reflect(connection)
    kept = [table for table in tables.sorted_tables if table.name not in ("alembic_version", "meta")]
    return {table.name: [dict(row._mapping) for row in connection.execute(select(table))] for table in kept}


def make_at(url: str, revision: str, lacking: set[str]) -> dict[str, list[dict[str, Any]]]:
    """A database as the evalsvc of a revision left it, with rows; gives the rows."""
    with writing(url) as connection:
        migrate(connection, max(revision, "0001"))
        connection.execute(text("INSERT INTO meta VALUES ('schema_version', :v)"), {"v": str(max(1, int(revision)))})
        for table in lacking:
            connection.execute(text(f"DROP TABLE {table}"))
        if revision == revisions.BEFORE_REVISIONS:
            connection.execute(text("DROP TABLE alembic_version"))
        fill(connection)
        return rows(connection)


def differences(url: str) -> list[Any]:
    with writing(url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, Base.metadata)


def indexes(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Of every table; what an index leaves out as text."""
    found = {table: inspect(connection).get_indexes(table) for table in inspect(connection).get_table_names()}
    return {
        table: [
            dict(index, dialect_options={k: str(v) for k, v in index.get("dialect_options", {}).items()})
            for index in all_
        ]
        for table, all_ in found.items()
    }


def columns_of(rows: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name in names} for row in rows]


EARLIER = [
    *((revisions.BEFORE_REVISIONS, lacking) for lacking in (set(), {"turns"}, {"baselines"}, LATE_TABLES)),
    *((revision, set[str]()) for revision in REVISIONS[:-1]),
]


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(("revision", "lacking"), EARLIER)
def test_every_revision_becomes_the_newest_and_keeps_its_rows(new_url, kind, revision, lacking):
    url = new_url(kind)
    before = make_at(url, revision, lacking)
    backup = upgrade_store(url)
    assert differences(url) == []
    with writing(url) as connection:
        after = rows(connection)
    for table, held in before.items():
        assert len(held) == 1
        assert columns_of(after[table], set(held[0])) == columns_of(held, set(after[table][0])), table
    assert {table for table in LATE_TABLES & set(after) if not after[table]} == lacking
    with open_store(url) as store:
        assert store_revision(store) == REVISION and len(queries.runs(store)) == 1
    if kind == "sqlite":
        assert backup is not None and backup.name.endswith(f".{revision}.backup")
        with writing(f"sqlite:///{backup}") as connection:
            assert rows(connection) == before
    else:
        assert backup is None


@pytest.mark.parametrize("kind", SERVERS)
def test_a_new_database_is_what_the_revisions_make(new_url, kind):
    url = new_url(kind)
    open_store(url, create=True).close()
    assert differences(url) == []
    with writing(url) as connection:
        made = indexes(connection)
    other = new_url(kind)
    with writing(other) as connection:
        migrate(connection)
        assert indexes(connection) == made


def test_revisions_are_numbered_in_one_line():
    script = ScriptDirectory(str(FOLDER))
    assert script.get_heads() == [REVISION] == REVISIONS[-1:]
    assert [int(revision) for revision in REVISIONS] == list(range(1, len(REVISIONS) + 1))
    assert [revision.revision for revision in script.walk_revisions()] == REVISIONS[::-1]
    assert READABLE_FROM <= REVISION


def test_the_next_revision_is_written_from_what_the_schema_has_more(tmp_path, monkeypatch):
    import shutil

    from evalsvc.store.migrations import __main__ as writing_one

    copy = tmp_path / "migrations"
    shutil.copytree(FOLDER, copy)
    for module in (migrations, writing_one):
        monkeypatch.setattr(module, "FOLDER", copy)
    changed = MetaData()
    for table in Base.metadata.tables.values():
        table.to_metadata(changed)
    from sqlalchemy import Column, Table

    Table("new_things", changed, Column("id", Integer, primary_key=True))
    monkeypatch.setattr(Base, "metadata", changed)
    number = writing_one.write_revision("Table of new things")
    written = (copy / "versions" / f"{number}_table_of_new_things.py").read_text()
    assert int(number) == len(REVISIONS) + 1
    assert f"down_revision = '{REVISION}'" in written and "op.create_table('new_things'" in written


def test_opening_an_early_file_for_writing_upgrades_it_and_says_where_the_backup_is(tmp_path, caplog):
    path = tmp_path / "runs.sqlite"
    make_at(f"sqlite:///{path}", "0000", LATE_TABLES)
    with open_store(path) as store:
        assert store_revision(store) == REVISION
    backup = tmp_path / "runs.sqlite.0000.backup"
    said = f"{path}: schema 0000 became {REVISION}; what it was is kept in {backup}"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("evalsvc")] == [said]
    assert sorted(p.name for p in tmp_path.glob("*.backup*")) == [backup.name]
    open_store(path).close()
    assert sorted(p.name for p in tmp_path.glob("*.backup*")) == [backup.name]  # nothing was left to do


def test_a_backup_is_never_written_over(tmp_path):
    path = tmp_path / "a ?%41.sqlite"
    path.with_name(path.name + ".0000.backup").write_text("mine")
    make_at(f"sqlite:///{tmp_path / 'made.sqlite'}", "0000", set())
    (tmp_path / "made.sqlite").rename(path)
    open_store(path).close()
    assert path.with_name(path.name + ".0000.backup").read_text() == "mine"
    with contextlib.closing(sqlite3.connect(path.with_name(path.name + ".0000.backup-2"))) as copy:
        assert copy.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_upgrade_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "runs.sqlite"
    before = make_at(f"sqlite:///{path}", "0000", LATE_TABLES)

    def migrate_and_fail(connection: Connection) -> None:
        migrate(connection)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(migrations, "migrate", migrate_and_fail)
    with pytest.raises(StoreError, match=r"runs.sqlite: cannot grow, no space is left"):
        open_store(path)
    with writing(f"sqlite:///{path}") as connection:
        assert rows(connection) == before
        assert "alembic_version" not in inspect(connection).get_table_names()


def test_rows_that_refer_to_nothing_stop_an_upgrade(tmp_path):
    path = tmp_path / "runs.sqlite"
    make_at(f"sqlite:///{path}", "0000", set())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("DELETE FROM items")
    with pytest.raises(StoreError, match="row 1 of samples refers to a row of items that is not there"):
        open_store(path)


def test_many_that_open_an_early_file_at_once_upgrade_it_once(tmp_path):
    path = tmp_path / "runs.sqlite"
    make_at(f"sqlite:///{path}", "0000", LATE_TABLES)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            open_store(path).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and differences(f"sqlite:///{path}") == []
    assert len(list(tmp_path.glob("*.backup*"))) == 1


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_a_newer_evalsvc_is_refused_and_left_alone(new_url, kind, read_only):
    url = new_url(kind)
    open_store(url, create=True).close()
    with writing(url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    for call in (lambda: open_store(url, read_only=read_only, create=True), lambda: upgrade_store(url)):
        with pytest.raises(StoreError, match=f"schema 0999, made by a newer evalsvc; .* up to {REVISION}: update"):
            call()


def test_a_file_that_is_read_says_how_it_is_upgraded_where_it_must_be(tmp_path, monkeypatch):
    path = tmp_path / "runs.sqlite"
    make_at(f"sqlite:///{path}", "0001", set())
    with pytest.raises(
        StoreError, match=rf"read from schema {READABLE_FROM} on; `evalsvc db upgrade --db {path}` brings it"
    ):
        open_store(path, read_only=True)
    monkeypatch.setattr(opening, "READABLE_FROM", "0001")
    with open_store(path, read_only=True) as store:
        assert store_revision(store) == "0001"
    assert not list(tmp_path.glob("*.backup*"))


def test_a_server_is_upgraded_only_when_asked(new_url):
    url = new_url("postgresql")
    make_at(url, "0000", LATE_TABLES)
    with pytest.raises(StoreError, match=r"has schema 0000 .* make a backup \(pg_dump\), then `evalsvc db upgrade"):
        open_store(url)
    upgrade_store(url)
    with open_store(url, read_only=True) as store:
        assert len(queries.runs(store)) == 1


@pytest.mark.parametrize("kind", SERVERS)
def test_a_database_of_something_else_is_not_touched(new_url, kind):
    url = new_url(kind)
    with writing(url) as connection:
        connection.execute(text("CREATE TABLE songs (name TEXT)"))
    with pytest.raises(StoreError, match="is a database of something else"):
        open_store(url, create=True)
    with pytest.raises(StoreError, match="is a database of something else"):
        upgrade_store(url)


def test_an_early_evalsvc_says_why_it_cannot_go_on_once_a_file_was_changed(store: Store):
    """It compares this row with the version that it knows, "1"."""
    with store.session() as session:
        held = session.scalar(text("SELECT value FROM meta WHERE key = 'schema_version'"))
    assert held == str(int(REVISION))
