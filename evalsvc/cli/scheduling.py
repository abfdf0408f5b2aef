"""The loops of schedulers and workers: they read the jobs file again when it changes, wait, and end in order."""

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from evalsvc.cli.common import note
from evalsvc.errors import ConfigError, StoreError
from evalsvc.jobs.delivering import deliver_one
from evalsvc.jobs.process import RunProcess, run_arguments
from evalsvc.jobs.scheduler import Queued, look, next_planned
from evalsvc.jobs.secrets import redactor, without_secrets
from evalsvc.jobs.spec import Job, JobsFile, load_jobs
from evalsvc.jobs.waiting import Waiter, utc_clock
from evalsvc.jobs.worker import Worker
from evalsvc.store.executions import Execution, unfinished_executions, waiting_executions
from evalsvc.store.session import Location, Store, open_store, refuse_unusable


class Watched:
    """A jobs file that may be edited while it is used; a broken edit is told once, and the last good one counts."""

    def __init__(self, path: Path) -> None:
        """Reads it.

        Raises:
            ConfigError: It cannot be used.
        """
        self.path = path
        self.jobs = load_jobs(path)
        self._seen = _text(path)

    def again(self) -> JobsFile:
        """The file as it is now, or as it was when it could last be read."""
        text = _text(self.path)
        if text != self._seen:
            self._seen = text
            try:
                self.jobs = load_jobs(self.path)
                note(f"{self.path}: read again")
            except ConfigError as error:
                note(f"{error}; going on with what was read before")
        return self.jobs


def _text(path: Path) -> bytes | None:
    with suppress(OSError):
        return path.read_bytes()
    return None


def open_queue(db: str) -> Store:
    """The database, made where it is missing."""
    refuse_unusable(db, create=True)
    return open_store(db, create=True)


def say_queued(found: list[Queued]) -> None:
    """A line for each job of which something became due."""
    for one in found:
        for at in one.queued:
            note(f"{one.job}: queued, planned for {at:%Y-%m-%d %H:%M} UTC")
        if one.missed:
            last = f"{one.missed[-1]:%Y-%m-%d %H:%M} UTC"
            note(f"{one.job}: {len(one.missed):,} planned times are missed, the last of {last}")


def say_idle(store: Store, jobs: JobsFile, why: str) -> None:
    """What a command says that found nothing to do: what comes next, and what others hold or a retry waits for."""
    now = utc_clock()
    at, job = next_planned(jobs, now)
    note(f"{why}; next is {job}, planned for {at:%Y-%m-%d %H:%M} UTC")
    for one in unfinished_executions(store, list(jobs.jobs)):
        note(f"execution {one.id} of {one.job}: {one.status}, {_why_unfinished(one, now)}")


def _why_unfinished(one: Execution, now: datetime) -> str:
    if one.status == "running":
        return f"held by {one.holder}"
    at = f"{one.not_before:%Y-%m-%d %H:%M:%S} UTC"
    return f"waits until {at}" if one.not_before > now else f"could be taken since {at}"


def make_worker(store: Store, watched: Watched, db: str, *, lease_s: float, finish_s: float) -> Worker:
    """A worker of this process, whose runs are processes of their own."""

    def start(job: Job, held: Execution) -> RunProcess:
        jobs = watched.jobs
        arguments = run_arguments(job, held, watched.path.absolute().parent)
        env = without_secrets(jobs, os.environ) | {"EVALSVC_DB": db}
        return RunProcess(arguments, env, redactor(jobs, os.environ))

    name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    return Worker(store, watched.jobs, name, utc_clock, start, note, lease_s=lease_s, finish_s=finish_s)


def work(
    store: Store,
    watched: Watched,
    worker: Worker,
    waiting: Waiter,
    *,
    done: Callable[[], bool],
    poll_s: float,
    most: int | None = None,
) -> None:
    """Steps a worker until it is done, took so many executions, or is asked to end; delivers notices between steps."""
    while True:
        if waiting.asked or (most is not None and worker.taken >= most and not worker.busy):
            worker.stop(at_once=waiting.asked > 1)
        worker.use(watched.again())
        try:
            moved = worker.step()
            moved = deliver(store, watched.jobs) or moved
            if not worker.busy and not moved and (worker.stopping or done()):
                return
        except StoreError as error:
            note(f"{error}; trying again")
            moved = False
            if worker.stopping and not worker.busy:
                raise
        if not moved:
            waiting.wait(1.0 if worker.busy and waiting.asked else poll_s)


def deliver(store: Store, jobs: JobsFile) -> bool:
    """Tries one delivery that is due."""
    return deliver_one(store, jobs, utc_clock, os.environ, note)


def schedule(store: Store, jobs: JobsFile) -> list[Queued]:
    """One look; says what it queued."""
    found = look(store, jobs, datetime.now(UTC))
    say_queued(found)
    return found


def nothing_left(store: Store, watched: Watched, worker: Worker) -> Callable[[], bool]:
    """Whether nothing is left for a worker: what others hold is theirs, and so are retries of what others took."""

    def done() -> bool:
        return not waiting_executions(store, list(watched.jobs.jobs), utc_clock(), later=worker.taken > 0)

    return done


@contextmanager
def held_queue(db: str) -> Iterator[Store | None]:
    """The database for reading; None where there is none yet, so that a jobs file can be looked at before."""
    location = Location.parse(db)
    if location.path is not None and not location.path.exists():
        yield None
        return
    with open_store(db, read_only=True) as store:
        yield store
