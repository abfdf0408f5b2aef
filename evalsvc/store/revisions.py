"""Which revision of the schema a database holds, and bringing it to this evalsvc's."""

import contextlib
import logging
import re
import sqlite3
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, func, inspect, select, text

from evalsvc.errors import StoreError
from evalsvc.store.schema import REVISION, Base, Meta

BEFORE_REVISIONS = "0000"  # a database of ours that has no table of revisions
_KEY = "schema_version"  # read by an evalsvc from before there were revisions, which then says why it cannot go on
_LOCK = 0x6576616C  # of PostgreSQL's advisory locks, ours while tables are made or changed
_ALEMBIC = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
_logger = logging.getLogger(__name__)


def held_revision(connection: Connection) -> str | None:
    """The revision of a database of ours; None when it is empty or of something else."""
    tables = inspect(connection).get_table_names()
    if Meta.__tablename__ not in tables:
        return None
    version = connection.scalar(select(Meta.value).where(Meta.key == _KEY))
    if version is None:
        return None
    if _ALEMBIC.name in tables:
        return connection.scalar(select(func.max(_ALEMBIC.c.version_num))) or BEFORE_REVISIONS
    return BEFORE_REVISIONS if version == "1" else f"{int(version):04}" if version.isdecimal() else None


def check_revision(name: str, revision: str | None, least: str) -> None:
    """Refuses a database that is not of the revisions from `least` to this evalsvc's own.

    Raises:
        StoreError: Of something else, of a newer evalsvc, or so old that it has to be upgraded first.
    """
    if revision is None or not re.fullmatch(r"\d{4}", revision):
        raise StoreError(f"{name}: is a database of something else; name an evalsvc database or a new file")
    if revision > REVISION:
        raise StoreError(
            f"{name}: has schema {revision}, made by a newer evalsvc; this one knows schemas up to {REVISION}: "
            "update evalsvc, or name another database"
        )
    if revision < least:
        raise StoreError(
            f"{name}: has schema {revision}, of an earlier evalsvc, and is read from schema {least} on; "
            f"`evalsvc db upgrade --db {name}` brings it to {REVISION}"
        )


def lock_schema(connection: Connection) -> None:
    """Waits until no other process makes or changes tables; SQLite's write transaction does so by itself."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def create_tables(connection: Connection) -> None:
    """Makes every table and notes the revision, in an empty database; one that holds tables is left alone."""
    lock_schema(connection)
    if inspect(connection).get_table_names():
        return
    Base.metadata.create_all(connection)
    _ALEMBIC.create(connection)
    connection.execute(_ALEMBIC.insert().values(version_num=REVISION))
    connection.execute(Meta.__table__.insert().values(key=_KEY, value=str(int(REVISION))))  # pyright: ignore[reportAttributeAccessIssue]


def upgrade(connection: Connection, name: str, path: Path | None) -> Path | None:
    """Brings a database of ours to this evalsvc's revision, in the transaction of `connection`.

    Args:
        connection: In a transaction that holds the write lock; an SQLite one without enforced foreign keys.
        name: Of the database, as it may be shown.
        path: The SQLite file, which is copied first; None for a server.

    Returns:
        The backup; None where nothing was to be done, or of a server.

    Raises:
        StoreError: A revision that cannot be upgraded from, or rows that refer to nothing.
        OSError: The backup cannot be written; nothing was changed.
    """
    from evalsvc.store.migrations import migrate

    lock_schema(connection)
    revision = held_revision(connection)
    if revision == REVISION:
        return None  # another process was faster
    assert revision is not None
    backup = None if path is None else back_up(path, revision)
    migrate(connection)
    connection.execute(Meta.__table__.update().values(value=str(int(REVISION))))  # pyright: ignore[reportAttributeAccessIssue]
    if connection.dialect.name == "sqlite":
        lost = connection.execute(text("PRAGMA foreign_key_check")).first()
        if lost is not None:
            raise StoreError(f"{name}: row {lost[1]} of {lost[0]} refers to a row of {lost[2]} that is not there")
    beside = "" if backup is None else f"; what it was is kept in {backup}"
    _logger.warning("%s: schema %s became %s%s", name, revision, REVISION, beside)
    return backup


def back_up(path: Path, revision: str) -> Path:
    """Copies an SQLite file, whole and at one moment, to `NAME.REVISION.backup` beside it.

    A backup that is there already is kept: the new one gets a number.
    """
    target = path.with_name(f"{path.name}.{revision}.backup")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.{revision}.backup-{number}")
    part = target.with_name(target.name + ".part")
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target
