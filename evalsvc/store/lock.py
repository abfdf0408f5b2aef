"""One writing run a database: an advisory lock that the operating system releases when its holder dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from sqlalchemy import text

from evalsvc.errors import StoreError
from evalsvc.store.failures import store_errors
from evalsvc.store.presence import ANSWERING, lock_of
from evalsvc.store.session import BUSY_TIMEOUT_S, Location, Store, open_store, refuse_unusable, server_engine

Claim = Callable[[int], None]
_RUN = 0x6576616D  # of PostgreSQL's advisory locks, ours while a run writes
_LOOKING_S, _LOOK_S = 2.0, 0.02  # who asks whether the lock is held has it for a moment


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
    with run_lock(path_or_url, wait=wait) as claim, open_store(path_or_url, create=create) as store:
        store.claim = claim
        yield store


@contextmanager
def run_lock(path_or_url: str | os.PathLike[str], *, wait: bool = False) -> Iterator[Claim]:
    """Holds `PATH.lock` while a run writes; `wait` until another one has ended.

    Gives what names a run as answered by this process, until the lock is released or the process dies.

    The file stays behind when the lock is released: removing it would let two runs hold two files of one name.
    On a server it is an advisory lock of the database, held by a connection of its own, from whichever machine.

    Raises:
        StoreError: Another run holds it, or the file cannot be made.
    """
    location = Location.parse(path_or_url)
    if location.path is None:
        with _server_lock(location, wait) as of_server:
            yield of_server
        return
    lock_path = lock_of(location.path)
    with store_errors(str(lock_path)):
        handle = lock_path.open("a+", encoding="utf-8")
    with handle:
        try:
            _take(handle, wait)
        except BlockingIOError:
            handle.seek(0)
            by = _named(handle.readline().partition(" ")[0].strip())
            message = f"another run is writing to {location.name}{by}; wait for it to finish, or stop it and run again"
            raise StoreError(message) from None
        except OSError as error:
            raise StoreError(f"{lock_path}: cannot be locked ({error.strerror}); use a local disk") from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()

        def claim(run_id: int) -> None:
            handle.write(f" {run_id}")
            handle.flush()

        yield claim


def _take(handle: TextIO, wait: bool) -> None:
    """Takes the lock, once those who only ask whether it is held have looked.

    Raises:
        BlockingIOError: Another process writes, or there were such for two seconds on end.
    """
    until = time.monotonic() + _LOOKING_S
    while not wait:
        with suppress(BlockingIOError):
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared with them, and never with who writes
        fcntl.flock(handle, fcntl.LOCK_UN)
        if time.monotonic() > until:
            raise BlockingIOError
        time.sleep(_LOOK_S)
    return fcntl.flock(handle, fcntl.LOCK_EX)


def _named(holder: str) -> str:
    """The process that a lock's file names, where it lives; that of an earlier run stays there."""
    try:
        os.kill(int(holder), 0)
    except PermissionError:
        pass  # somebody else's
    except (OSError, ValueError, OverflowError):
        return ""
    return f" (process {holder})"


@contextmanager
def _server_lock(location: Location, wait: bool) -> Iterator[Claim]:
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

        def claim(run_id: int) -> None:
            with store_errors(location.name):
                ours = {"ours": ANSWERING, "run": run_id}
                connection.execute(text("SELECT pg_advisory_lock(CAST(:ours AS int), CAST(:run AS int))"), ours)

        yield claim
    finally:
        connection.invalidate()
        connection.close()
        engine.dispose()
