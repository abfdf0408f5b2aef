"""Opening a database: an SQLite file, or a PostgreSQL server by its URL.

Every commit is on the disk before it returns (WAL with synchronous FULL), so a killed process or a power cut loses
only the transaction that was under way.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from evalsvc.errors import ConfigError, StoreError
from evalsvc.store import job_tables as _job_tables  # noqa: F401, its tables belong to the schema
from evalsvc.store.bulk import dumps
from evalsvc.store.failures import READ_ONLY, store_errors
from evalsvc.store.revisions import BEFORE_REVISIONS, check_revision, create_tables, held_revision, upgrade
from evalsvc.store.schema import READABLE_FROM, REVISION

BUSY_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10
# A signal that comes while a connection is closed is raised; the pool would print its traceback, too.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
_PLAIN = ("host", "port", "dbname", "sslmode")  # options of a URL that may be shown; a password can be one, too


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a database is. `name` can be shown: it never holds a password. `path` is None unless it is SQLite."""

    name: str
    url: URL | None
    path: Path | None

    @classmethod
    def parse(cls, path_or_url: str | os.PathLike[str]) -> Self:
        """Reads a plain path or a URL.

        Raises:
            ConfigError: Empty, not a URL, or an SQLite database in memory.
        """
        text = os.fspath(path_or_url)
        if "://" not in text:
            if not text.strip() or "\0" in text:
                raise ConfigError("the database path is empty or no path; give a file name or a URL")
            return cls(name=text, url=None, path=Path(text))
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            scheme = text.split("://", 1)[0]
            forms = "use sqlite:///PATH, or postgresql://USER@HOST:PORT/NAME"
            raise ConfigError(f"the database URL ({scheme}://…) cannot be read; {forms}") from None
        if url.drivername in ("postgresql", "postgresql+psycopg"):
            plain = {key: value for key, value in url.query.items() if key in _PLAIN}
            name = url.set(query=plain).render_as_string(hide_password=True)
            driven = url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url
            return cls(name=name, url=driven, path=None)
        if url.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise ConfigError(f"{url.drivername}:// is no database of evalsvc; use a file, or postgresql://HOST/NAME")
        if not url.database or url.database == ":memory:":
            raise ConfigError("a database in memory cannot be shared; use sqlite:///PATH")
        if url.query:
            raise ConfigError(f"sqlite:///{url.database}: takes no options after `?`; leave them out")
        return cls(name=url.database, url=None, path=Path(url.database))


class Store:
    """An open database. Close it, or use it as a context manager.

    Attributes:
        claim: Names a run as answered by this process, for `presence`; does nothing where the lock is not held.
    """

    def __init__(self, name: str, engine: Engine, *, read_only: bool, address: str) -> None:
        """`name` can be shown; `address` is what was opened, with a password if it has one."""
        self.name = name
        self.address = address
        self.engine = engine
        self.read_only = read_only
        self.claim: Callable[[int], None] = lambda run_id: None
        self._writing = engine.execution_options(evalsvc_write=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases every connection."""
        self.engine.dispose()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session for reading, which sees one state of the database from its first query on.

        Raises:
            StoreError: Whatever goes wrong with the database inside the block.
        """
        with store_errors(self.name), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that holds the write lock from its first statement and commits when the block ends well.

        Raises:
            StoreError: Read-only store, or whatever goes wrong with the database; then nothing was written.
        """
        if self.read_only:
            raise StoreError(f"{self.name}: was opened for reading only")
        with store_errors(self.name), Session(self._writing, expire_on_commit=False) as session, session.begin():
            if self.engine.dialect.name != "sqlite":  # said of the connection: an engine's own level goes before
                session.connection(execution_options={"isolation_level": "READ COMMITTED"})
            yield session


def open_store(
    path_or_url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = False,
    timeout_s: float = BUSY_TIMEOUT_S,
) -> Store:
    """Opens a database and checks that it is ours and of this schema.

    An SQLite file of an earlier evalsvc is brought to this one's schema when it is opened for writing, and a backup
    kept beside it. One that is opened for reading is read as it is, where it can be. A server's database is only
    upgraded when somebody asks for it (`upgrade_store`): nobody else made the backup.

    Args:
        path_or_url: A file, `sqlite:///PATH`, or `postgresql://HOST/NAME`.
        read_only: Opens the file itself read-only; nothing beside it is locked against a writing run.
        create: Makes the file and its tables when it is missing or empty; its folder must exist.
        timeout_s: How long a statement waits for another writer.

    Raises:
        ConfigError: The path or URL cannot be used as written.
        StoreError: Missing, not a database, not ours, of another schema, locked, full or read-only.
    """
    location = Location.parse(path_or_url)
    create = create and not read_only
    with store_errors(location.name):
        if location.path is None:
            engine = server_engine(location, read_only=read_only, timeout_s=timeout_s)
            new = False
        else:
            new = _check_file(location.path, location.name, create=create)
            if not read_only and not new:
                _refuse_read_only(location.path, location.name)
            engine = _file_engine(location.path, read_only=read_only, create=new, timeout_s=timeout_s)
        store = Store(location.name, engine, read_only=read_only, address=os.fspath(path_or_url))
        try:
            if new or (create and _holds_nothing(store)):
                _create(store, timeout_s)
            revision = store_revision(store)
            if revision is not None and revision < REVISION and not read_only:
                if location.path is None:
                    raise StoreError(
                        f"{location.name}: has schema {revision} and this evalsvc writes {REVISION}; make a backup "
                        f"(pg_dump), then `evalsvc db upgrade --db URL`"
                    )
                upgrade_store(path_or_url, timeout_s=timeout_s)
                revision = store_revision(store)
            check_revision(location.name, revision, REVISION if not read_only else READABLE_FROM)
        except BaseException:
            store.close()
            raise
    return store


def refuse_unusable(path_or_url: str | os.PathLike[str], *, create: bool = False) -> None:
    """Refuses what can be no database of ours before anything is made beside it. A server is not asked.

    Args:
        path_or_url: As for `open_store`.
        create: Whether it may be missing or empty; its folder is made then.

    Raises:
        ConfigError: The path or URL cannot be used as written.
        StoreError: Missing, not a database, not ours, of a newer schema, or it cannot be written.
    """
    location = Location.parse(path_or_url)
    if location.path is None:
        return
    if create:
        with store_errors(f"{location.name}: its folder"):
            location.path.parent.mkdir(parents=True, exist_ok=True)
    with store_errors(location.name):
        if _check_file(location.path, location.name, create=create):
            return
        _refuse_read_only(location.path, location.name)
        engine = _file_engine(location.path, read_only=True, timeout_s=BUSY_TIMEOUT_S)
        with Store(location.name, engine, read_only=True, address=os.fspath(path_or_url)) as store:
            if not (create and _holds_nothing(store)):
                check_revision(location.name, store_revision(store), BEFORE_REVISIONS)


def store_revision(store: Store) -> str | None:
    """The revision that a database holds; None when it is empty or of something else."""
    with store.session() as session:
        return held_revision(session.connection())


def upgrade_store(path_or_url: str | os.PathLike[str], *, timeout_s: float = BUSY_TIMEOUT_S) -> Path | None:
    """Brings a database to this evalsvc's schema, whole or not at all.

    Returns:
        The backup that was made of an SQLite file; None where nothing was to be done, or of a server.

    Raises:
        StoreError: Not a database of ours, of a newer schema, or it cannot be written; then it is as it was.
    """
    location = Location.parse(path_or_url)
    with store_errors(location.name):
        if location.path is None:
            engine = server_engine(location, read_only=False, timeout_s=timeout_s)
        else:
            _check_file(location.path, location.name, create=False)
            # a table that is made anew under another's references must be allowed to go first
            engine = _file_engine(location.path, timeout_s=timeout_s, references=False)
        with Store(location.name, engine, read_only=False, address=os.fspath(path_or_url)) as store:
            check_revision(location.name, store_revision(store), BEFORE_REVISIONS)
            with store.transaction() as session:
                return upgrade(session.connection(), location.name, location.path)


def _check_file(path: Path, name: str, *, create: bool) -> bool:
    """Whether the tables are still to be made; a `StoreError` when the file can be no database of ours."""
    if path.is_dir():
        raise StoreError(f"{name}: is a folder; give the database file")
    if not path.exists():
        if not create:
            raise StoreError(f"{name}: no such database; `evalsvc run FILE` makes one, --db names another")
        if not path.parent.is_dir():
            raise StoreError(f"{name}: its folder {path.parent} does not exist; create it or name another path")
        if not os.access(path.parent, os.W_OK):
            raise StoreError(f"{name}: its folder {path.parent} is not writable; name another path")
        return True
    # what it begins with is read by SQLite alone: closing a file of our own would drop this process's locks on it
    if not path.stat().st_size:
        if not create:
            raise StoreError(f"{name}: the file is empty; `evalsvc run FILE` fills one")
        return True
    return False


def _refuse_read_only(path: Path, name: str) -> None:
    """SQLite itself would only say that it cannot open the file: it writes beside it, too."""
    if not os.access(path, os.W_OK) or not os.access(path.absolute().parent, os.W_OK):
        raise StoreError(f"{name}: {READ_ONLY}")


def _file_engine(
    path: Path, *, read_only: bool = False, create: bool = False, timeout_s: float, references: bool = True
) -> Engine:
    uri = path.absolute().as_uri()
    if read_only:
        uri += "?mode=ro"
        # SQLite needs to write beside a WAL database even to read it; where nobody can, the file cannot change.
        wal = path.with_name(path.name + "-wal")
        if not os.access(path.absolute().parent, os.W_OK) and not wal.exists():
            uri += "&immutable=1"
    else:
        uri += "?mode=rwc" if create else "?mode=rw"

    def connect() -> sqlite3.Connection:
        # isolation_level None: we emit BEGIN ourselves, so that reads are one snapshot and writes lock at once.
        connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA foreign_keys = {'ON' if references else 'OFF'}")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, json_serializer=dumps)
    event.listen(engine, "begin", _begin)
    return engine


def server_engine(location: Location, *, read_only: bool, timeout_s: float) -> Engine:
    """Of a server's database; nothing is connected yet."""
    assert location.url is not None
    waits = f"-c lock_timeout={round(1000 * timeout_s)}"
    try:
        engine = create_engine(
            location.url,
            json_serializer=dumps,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "options": waits},
        )
    except ModuleNotFoundError as error:
        message = f"{location.name}: {error.name} is not installed; `pip install 'evalsvc[postgres]'` brings it"
        raise StoreError(message) from error
    # Reads are one snapshot, as in SQLite; a writing transaction sees what others committed while it waited for a row.
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=read_only)


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("evalsvc_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _holds_nothing(store: Store) -> bool:
    """Whether there are no tables at all: a process that was to make them was killed before it could."""
    with store.session() as session:
        return not inspect(session.connection()).get_table_names()


def _create(store: Store, timeout_s: float) -> None:
    """Makes the tables in one transaction; a second process waits and finds them."""
    if store.engine.dialect.name == "sqlite":
        _enable_wal(store.engine, timeout_s)
    with store.transaction() as session:
        create_tables(session.connection())


def _enable_wal(engine: Engine, timeout_s: float) -> None:
    """Switches a new file to WAL, which stays; SQLite does not wait for a second process here, so we do."""
    deadline = time.monotonic() + timeout_s
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        finally:
            raw.close()
