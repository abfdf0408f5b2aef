"""One writing run a database: an advisory lock that the operating system releases when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from evalsvc.errors import StoreError
from evalsvc.store.failures import store_errors
from evalsvc.store.session import Location


@contextmanager
def run_lock(path_or_url: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Holds `PATH.lock` while a run writes; `wait` until another one has ended.

    The file stays behind when the lock is released: removing it would let two runs hold two files of one name.
    A `postgresql://` URL is not guarded by this lock.

    Raises:
        StoreError: Another run holds it, or the file cannot be made.
    """
    location = Location.parse(path_or_url)
    if location.path is None:
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
