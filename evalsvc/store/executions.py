"""The queue of planned executions: enqueued once, leased to one worker at a time, taken over when its lease ends.

Each function is one transaction. On SQLite a transaction is alone from its first statement; elsewhere the row of the
job is held while something of that job changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from evalsvc.errors import ConfigError
from evalsvc.store.job_tables import ExecutionRow, ScheduleRow, read_stamp, stamp
from evalsvc.store.session import Store

UNFINISHED = ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A planned time of a job, as stored.

    Attributes:
        attempt: How often it was leased; the fence of whoever holds it.
        failures: Attempts that ended without a result.
        exit_code: Of `evalsvc run`, negative for a signal; None while there is none.
        run_id: The run that it made.
        message: Why it ended as it did.
    """

    id: int
    job: str
    planned_at: datetime
    status: str
    not_before: datetime
    attempt: int
    failures: int
    holder: str | None
    lease_until: datetime | None
    cancel: bool
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    run_id: int | None
    message: str | None

    @property
    def key(self) -> str:
        """Names its run in every attempt."""
        return f"{self.job} {self.planned_at:%Y-%m-%dT%H:%M:%SZ} #{self.id}"


def record(row: ExecutionRow) -> Execution:
    """A row as a plain record."""
    times = ("planned_at", "not_before", "lease_until", "started_at", "ended_at")
    fields: dict[str, Any] = {name: getattr(row, name) for name in Execution.__dataclass_fields__}
    fields |= {name: read_stamp(fields[name]) for name in times if fields[name] is not None}
    return Execution(**fields)


def hold_job(session: Session, job: str) -> ScheduleRow | None:
    """Holds a job until the transaction ends; None where no scheduler has seen it."""
    session.execute(update(ScheduleRow).where(ScheduleRow.job == job).values(locked=ScheduleRow.locked + 1))
    return session.get(ScheduleRow, job, populate_existing=True)


def add(session: Session, job: str, planned: Sequence[datetime], status: str, now: datetime) -> list[datetime]:
    """Enters planned times that are not there; the caller holds the job. Returns those that are new."""
    texts = {stamp(at): at for at in planned}
    query = select(ExecutionRow.planned_at).where(ExecutionRow.job == job, ExecutionRow.planned_at.in_(texts))
    held = set(session.scalars(query))
    new = [at for text, at in texts.items() if text not in held]
    for at in new:
        ended = stamp(now) if status == "missed" else None
        session.add(ExecutionRow(job=job, planned_at=stamp(at), status=status, not_before=stamp(now), ended_at=ended))
    session.flush()
    return new


def lease(store: Store, holder: str, now: datetime, lease_s: float, jobs: Sequence[str]) -> Execution | None:
    """Takes the execution that was planned first of those that wait, or whose holder let its lease end.

    Executions of one job run one at a time.

    Args:
        store: The database.
        holder: Who takes it.
        now: The clock's reading.
        lease_s: Seconds until somebody else may take it, unless `extend` is called.
        jobs: Jobs that the holder can run.
    """
    text = stamp(now)
    free = or_(
        and_(ExecutionRow.status == "queued", ExecutionRow.not_before <= text),
        and_(ExecutionRow.status == "running", ExecutionRow.lease_until < text),
    )
    waiting = select(ExecutionRow).where(free, ExecutionRow.job.in_(jobs)).order_by(ExecutionRow.planned_at)
    with store.session() as session:  # most looks find nothing, and then nothing is locked
        if session.scalars(waiting.limit(1)).first() is None:
            return None
    with store.transaction() as session:
        tried: set[str] = set()
        for row in session.scalars(waiting).all():
            if row.job in tried:
                continue
            tried.add(row.job)
            if hold_job(session, row.job) is None:
                continue
            session.refresh(row)  # somebody may have taken it before we held the job
            still = session.scalar(select(ExecutionRow.id).where(ExecutionRow.id == row.id, free))
            others = select(ExecutionRow.id).where(
                ExecutionRow.job == row.job,
                ExecutionRow.id != row.id,
                ExecutionRow.status == "running",
                ExecutionRow.lease_until >= text,
            )
            if still is None or session.scalar(others) is not None:
                continue
            row.failures += row.status == "running"  # whoever held it died
            row.status, row.holder, row.attempt = "running", holder, row.attempt + 1
            row.lease_until, row.started_at = stamp(now + timedelta(seconds=lease_s)), row.started_at or text
            session.flush()
            return record(row)
    return None


def extend(store: Store, held: Execution, now: datetime, lease_s: float) -> Execution | None:
    """Holds on to an execution; None where it is no longer the holder's. Its `cancel` says whether to stop."""
    with store.transaction() as session:
        row = _mine(session, held)
        if row is None:
            return None
        row.lease_until = stamp(now + timedelta(seconds=lease_s))
        session.flush()
        return record(row)


def give_back(store: Store, held: Execution, now: datetime) -> bool:
    """Returns an execution unfinished, for anybody to go on with at once; no failure is counted."""
    with store.transaction() as session:
        row = _mine(session, held)
        if row is not None:
            row.status, row.holder, row.lease_until, row.not_before = "queued", None, None, stamp(now)
        return row is not None


def end(session: Session, held: Execution, status: str, now: datetime, **fields: object) -> bool:
    """Ends an execution inside a transaction; false where it is no longer the holder's, and nothing was changed."""
    row = _mine(session, held)
    if row is None:
        return False
    row.status, row.holder, row.lease_until, row.ended_at = status, None, None, stamp(now)
    for name, value in fields.items():
        setattr(row, name, value)
    return True


def retry_later(store: Store, held: Execution, at: datetime, **fields: object) -> bool:
    """Counts a failure and queues the execution again, not before a time."""
    with store.transaction() as session:
        row = _mine(session, held)
        if row is not None:
            row.status, row.holder, row.lease_until = "queued", None, None
            row.failures, row.not_before = row.failures + 1, stamp(at)
            for name, value in fields.items():
                setattr(row, name, value)
        return row is not None


def _mine(session: Session, held: Execution) -> ExecutionRow | None:
    if hold_job(session, held.job) is None:
        return None
    row = session.get(ExecutionRow, held.id, populate_existing=True)
    if row is None or row.status != "running" or row.attempt != held.attempt or row.holder != held.holder:
        return None
    return row


def cancel(store: Store, execution_id: int, now: datetime) -> Execution:
    """Cancels what waits at once; what runs, as soon as its worker looks.

    Raises:
        ConfigError: No such execution, or it is over.
    """
    with store.transaction() as session:
        row = _held_row(session, execution_id)
        if row.status not in UNFINISHED:
            raise ConfigError(f"execution {execution_id} is {row.status}; only what waits or runs can be cancelled")
        row.cancel = True
        if row.status == "queued" or (row.lease_until is not None and row.lease_until < stamp(now)):
            row.status, row.ended_at, row.message = "cancelled", stamp(now), "cancelled before it ran"
        session.flush()
        return record(row)


def retry(store: Store, execution_id: int, now: datetime) -> Execution:
    """Queues an execution again that ended without a result, was cancelled or missed.

    Raises:
        ConfigError: No such execution, or it waits, runs or has its result.
    """
    with store.transaction() as session:
        row = _held_row(session, execution_id)
        if row.status not in ("failed", "cancelled", "missed"):
            raise ConfigError(
                f"execution {execution_id} is {row.status}; only failed, cancelled and missed ones are retried"
            )
        row.status, row.cancel, row.failures, row.not_before = "queued", False, 0, stamp(now)
        row.ended_at = row.exit_code = row.message = None
        session.flush()
        return record(row)


def _held_row(session: Session, execution_id: int) -> ExecutionRow:
    row = session.get(ExecutionRow, execution_id)
    if row is None:
        raise ConfigError(f"there is no execution {execution_id}; `evalsvc jobs ls` lists them")
    hold_job(session, row.job)
    session.refresh(row)
    return row


def get(store: Store, execution_id: int) -> Execution:
    """One execution.

    Raises:
        ConfigError: There is none of this number.
    """
    with store.session() as session:
        row = session.get(ExecutionRow, execution_id)
        if row is None:
            raise ConfigError(f"there is no execution {execution_id}; `evalsvc jobs ls` lists them")
        return record(row)


def executions(store: Store, job: str | None = None, most: int = 50) -> list[Execution]:
    """The latest planned executions, of one job or of all, newest first."""
    query = select(ExecutionRow).order_by(ExecutionRow.planned_at.desc(), ExecutionRow.id.desc()).limit(most)
    if job is not None:
        query = query.where(ExecutionRow.job == job)
    with store.session() as session:
        return [record(row) for row in session.scalars(query)]


def unfinished_executions(store: Store, jobs: Sequence[str]) -> list[Execution]:
    """Executions of these jobs that wait or run, the one that was planned first leading."""
    query = select(ExecutionRow).where(ExecutionRow.status.in_(UNFINISHED), ExecutionRow.job.in_(jobs))
    with store.session() as session:
        return [record(row) for row in session.scalars(query.order_by(ExecutionRow.planned_at))]


def waiting_executions(store: Store, jobs: Sequence[str], now: datetime, *, later: bool) -> int:
    """How many executions a worker could take, now or, with `later`, after their backoff.

    What another worker holds is not counted, nor what waits for an execution of its own job that another one holds.
    """
    text = stamp(now)
    held = select(ExecutionRow.job).where(ExecutionRow.status == "running", ExecutionRow.lease_until >= text)
    queued = ExecutionRow.status == "queued"
    free = or_(
        queued if later else and_(queued, ExecutionRow.not_before <= text),
        and_(ExecutionRow.status == "running", ExecutionRow.lease_until < text),
    )
    query = select(func.count()).where(free, ExecutionRow.job.in_(jobs), ExecutionRow.job.not_in(held))
    with store.session() as session:
        return session.scalar(query) or 0
