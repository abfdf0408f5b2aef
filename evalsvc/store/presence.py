"""Whether a run that is not finished is being answered now: what its lock's holder says, which dies with it.

On a file the holder of `PATH.lock` writes its runs there, after its process. On a server it holds an advisory lock for
each run, which everybody can list.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import text

from evalsvc.store.session import Location, Store

RUNNING, INTERRUPTED = "running", "interrupted"
ANSWERING = 0x6576616E  # of PostgreSQL's advisory locks of two numbers; the second one is the run's
_HELD = text(
    "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = :ours AND objsubid = 2 AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_STANDBY = text("SELECT pg_is_in_recovery()")  # locks of the server that it follows are not known to it


def lock_of(path: Path) -> Path:
    """The lock of a database's file, which has one however many links lead to it."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + ".lock")


def words(store: Store) -> Callable[[int, str], str]:
    """What to call the state of a run, or of an arm of it: its stored status, but `interrupted` where nobody goes on.

    Call it before the statuses are read: a run that ends in between was answered, whatever its lock says later.

    Returns:
        Of a run's id and a stored status the word; it looks again, once, when it is first asked of something that is
        running and was not yet: it may have begun in between.
    """
    looks = [answering(store)]

    def word(run_id: int, status: str) -> str:
        if status != RUNNING or looks[0] is None or run_id in looks[0]:
            return status
        if len(looks) == 1:
            looks.append(answering(store))
        return RUNNING if looks[1] is None or run_id in looks[1] else INTERRUPTED

    return word


def answering(store: Store) -> frozenset[int] | None:
    """Runs that some process answers now; None where that cannot be told."""
    path = Location.parse(store.address).path
    if path is None:
        with store.session() as session:
            if session.scalar(_STANDBY):
                return None
            return frozenset(session.scalars(_HELD, {"ours": ANSWERING}))
    try:
        with lock_of(path).open(encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment, which `run_lock` waits out
            except BlockingIOError:
                return frozenset(int(word) for word in handle.read().split()[1:])
            return frozenset()
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError):
        return None
