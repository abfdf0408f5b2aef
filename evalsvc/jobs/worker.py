"""One worker: takes an execution, watches over its process, stores how it ended. Never blocks; the clock is given.

The process may crash or be killed without harm to the worker. A worker that is killed leaves a lease that ends; who
takes the execution over goes on with its run. A worker that cannot reach the database lets its process go before the
lease does.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from evalsvc.errors import StoreError
from evalsvc.jobs.outcome import Ended, backoff_s, is_result, may_retry, meaning, was_interrupted
from evalsvc.jobs.results import store_failure, store_result
from evalsvc.jobs.spec import Job, JobsFile
from evalsvc.store import executions
from evalsvc.store.executions import Execution
from evalsvc.store.session import Store

LEASE_S = 60.0
INTERRUPT_S = 20.0  # an interrupted run has this long to store what it holds


class Process(Protocol):
    """A run under way."""

    def poll(self) -> Ended | None:
        """How it ended; None while it has not."""

    def interrupt(self) -> None:
        """Asks it to store what it has and to end."""

    def kill(self) -> None:
        """Ends it and all that it started."""


class Worker:
    """Works off the queue, one execution at a time; `step` again and again.

    Attributes:
        taken: Executions that it took.
        codes: Exit codes of those that ended with a result or for good.
    """

    def __init__(
        self,
        store: Store,
        jobs: JobsFile,
        name: str,
        clock: Callable[[], datetime],
        start: Callable[[Job, Execution], Process],
        say: Callable[[str], None] = lambda text: None,
        *,
        lease_s: float = LEASE_S,
        finish_s: float = 0.0,
    ) -> None:
        """`name` is unique among workers; `finish_s` is what a run still gets after `stop`."""
        self.taken, self.codes = 0, list[int]()
        self._store, self._jobs, self._name, self._clock, self._start, self._say = store, jobs, name, clock, start, say
        self._lease_s, self._finish_s = lease_s, finish_s
        self._held: Execution | None = None
        self._process: Process | None = None
        self._stop_at: datetime | None = None
        self._reason = ""

    @property
    def busy(self) -> bool:
        """Whether it holds an execution."""
        return self._held is not None

    @property
    def stopping(self) -> bool:
        """Whether it takes nothing more."""
        return self._stop_at is not None

    def stop(self, *, at_once: bool = False) -> None:
        """Takes nothing more; what runs may end by itself for a while, then it is returned to the queue."""
        now = self._clock()
        if self._stop_at is None:
            self._stop_at = now + timedelta(seconds=self._finish_s)
        if at_once:
            self._stop_at = min(self._stop_at, now)

    def use(self, jobs: JobsFile) -> None:
        """Takes the jobs file as it is now; an execution under way keeps its own."""
        self._jobs = jobs

    def step(self) -> bool:
        """Does what is due; whether that was anything but waiting.

        Raises:
            StoreError: The database cannot be used, and nothing is held; nothing was lost.
        """
        now = self._clock()
        if self._held is None:
            return not self.stopping and self._take(now)
        ended = None if self._process is None else self._process.poll()
        if ended is None:
            self._watch(now)
            return False
        self._finish(self._held, ended, now)
        return True

    def _take(self, now: datetime) -> bool:
        held = executions.lease(self._store, self._name, now, self._lease_s, list(self._jobs.jobs))
        if held is None:
            return False
        self.taken += 1
        self._job, self._file = self._jobs.jobs[held.job], self._jobs
        if held.cancel:
            self._end(held, "cancelled", now, "cancelled")
        elif held.failures > self._job.retries:
            self._fail(held, now, None, f"its worker died, and no retry is left (of {self._job.retries})")
        else:
            self._say(f"{held.key}: attempt {held.attempt}")
            self._held, self._reason = held, ""
            self._deadline, self._kill_at = now + timedelta(seconds=self._job.timeout_s), None
            self._extend_at = now + timedelta(seconds=self._lease_s / 3)
            self._lease_ends = now + timedelta(seconds=self._lease_s)
            try:
                self._process = self._start(self._job, held)
            except OSError as error:
                self._finish(held, Ended(2, None, f"cannot be started ({error.strerror})"), now)
        return True

    def _watch(self, now: datetime) -> None:
        if now >= self._extend_at:
            self._extend(now)
        if not self._reason and now >= self._deadline:
            self._interrupt("timed out", now)
        if not self._reason and self._stop_at is not None and now >= self._stop_at:
            self._interrupt("stopped", now)
        if self._kill_at is not None and now >= self._kill_at and self._process is not None:
            self._process.kill()

    def _extend(self, now: datetime) -> None:
        assert self._held is not None
        try:
            kept = executions.extend(self._store, self._held, now, self._lease_s)
        except StoreError as error:
            self._say(f"{self._held.key}: its lease could not be extended: {error}")
            if now >= self._lease_ends - timedelta(seconds=self._lease_s / 6):
                self._lose()
            return
        if kept is None:
            self._lose()
            return
        self._extend_at, self._lease_ends = (now + timedelta(seconds=self._lease_s * part) for part in (1 / 3, 1))
        if kept.cancel and self._reason != "cancelled":
            self._interrupt("cancelled", now)

    def _lose(self) -> None:
        self._reason = "lost"
        if self._process is not None:
            self._process.kill()

    def _interrupt(self, reason: str, now: datetime) -> None:
        self._reason, self._kill_at = reason, now + timedelta(seconds=INTERRUPT_S)
        if self._process is not None:
            self._process.interrupt()

    def _finish(self, held: Execution, ended: Ended, now: datetime) -> None:
        reason = self._reason
        try:
            if reason == "lost":
                self._say(f"{held.key}: its lease was lost; another worker goes on")
            elif is_result(ended):
                stored = store_result(self._store, self._file, held, ended, now)
                self.codes += [ended.exit_code] if stored else []
                self._say(f"{held.key}: {meaning(ended.exit_code)}")
            elif reason == "cancelled":
                self._end(held, "cancelled", now, "cancelled")
            elif reason == "stopped" or (not reason and self.stopping and was_interrupted(ended)):
                executions.give_back(self._store, held, now)
                self._say(f"{held.key}: returned to the queue")
            else:
                why = f"timed out after {self._job.timeout_s:g} s" if reason else ended.message
                self._failed(held, ended, why, now, retry=bool(reason) or may_retry(ended))
        except StoreError as error:
            if now < self._lease_ends:
                self._say(f"{held.key}: its end could not be stored, trying again: {error}")
                return  # the process stays ended: the next step comes here again
            self._say(f"{held.key}: its end could not be stored, another worker goes on: {error}")
        self._held = self._process = None

    def _failed(self, held: Execution, ended: Ended, why: str, now: datetime, *, retry: bool) -> None:
        if not retry or held.failures >= self._job.retries:
            self._fail(held, now, ended.exit_code, why)
            return
        at = now + timedelta(seconds=backoff_s(self._job.backoff_s, held.failures))
        executions.retry_later(self._store, held, at, exit_code=ended.exit_code, message=why)
        self._say(f"{held.key}: {why}; again at {at:%H:%M:%S} UTC")

    def _fail(self, held: Execution, now: datetime, exit_code: int | None, why: str) -> None:
        if store_failure(self._store, self._file, held, exit_code, why, now):
            self.codes.append(2)
        self._say(f"{held.key}: failed: {why}")

    def _end(self, held: Execution, status: str, now: datetime, message: str) -> None:
        with self._store.transaction() as session:
            executions.end(session, held, status, now, message=message)
        self._say(f"{held.key}: {message}")
