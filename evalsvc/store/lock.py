"""One writing run a database: an advisory lock that the operating system releases when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from evalsvc.errors import StoreError
from evalsvc.store.failures import store_errors
from evalsvc.store.session import BUSY_TIMEOUT_S, Location, Store, open_store, refuse_unusable, server_engine

_RUN = 0x6576616D  # of PostgreSQL's advisory locks, ours while a run writes


@contextmanager
def locked_store(path_or_url: str | os.PathLike[str], *, create: bool = False, wait: bool = False) -> Iterator[Store]:
    """A database open for writing under its lock; beside what cannot be one no lock is left.

    Args:
        path_or_url: As for `open_store`.
        create: Makes the database, and its folder, where they are missing.
        wait: As for `run_lock`.

    Raises:
        ConfigError: The path or URL cannot be used as written.
        StoreError: As `open_store` and `run_lock`.
    """
    refuse_unusable(path_or_url, create=create)
    with run_lock(path_or_url, wait=wait), open_store(path_or_url, create=create) as store:
        yield store


@contextmanager
def run_lock(path_or_url: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Holds `PATH.lock` while a run writes; `wait` until another one has ended.

    The file stays behind when the lock is released: removing it would let two runs hold two files of one name.
    On a server it is an advisory lock of the database, held by a connection of its own, from whichever machine.

    Raises:
        StoreError: Another run holds it, or the file cannot be made.
    """
    location = Location.parse(path_or_url)
    if location.path is None:
        with _server_lock(location, wait):
            yield
        return
    lock_path = location.path.with_name(location.path.name + ".lock")
    with store_errors(str(lock_path)):
        handle = lock_path.open("a+", encoding="utf-8")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip()
            by = f" (process {holder})" if holder else ""
            message = f"another run is writing to {location.name}{by}; wait for it to finish, or stop it and run again"
            raise StoreError(message) from None
        except OSError as error:
            raise StoreError(f"{lock_path}: cannot be locked ({error.strerror}); use a local disk") from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


@contextmanager
def _server_lock(location: Location, wait: bool) -> Iterator[None]:
    engine = server_engine(location, read_only=False, timeout_s=BUSY_TIMEOUT_S)
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with store_errors(location.name):
        connection = alone.connect()
    try:
        with store_errors(location.name):
            if wait:
                connection.execute(text("SET lock_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _RUN})
            elif not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _RUN}):
                message = f"another run is writing to {location.name}; wait for it to finish, or stop it and run again"
                raise StoreError(message)
        yield
    finally:
        connection.invalidate()
        connection.close()
        engine.dispose()
