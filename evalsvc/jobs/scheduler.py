"""Queues what became due, once, however many schedulers look."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from evalsvc.jobs.calendar import due, planned_after, planned_between
from evalsvc.jobs.notices import notice
from evalsvc.jobs.spec import Job, JobsFile
from evalsvc.store.executions import add, hold_job
from evalsvc.store.job_tables import ScheduleRow, read_stamp, stamp
from evalsvc.store.outbox import tell
from evalsvc.store.session import Store


@dataclass(frozen=True)
class Queued:
    """What one look did for one job.

    Attributes:
        queued: Planned times that were queued by this look.
        missed: Planned times that it set down as missed.
        late: How many were not found within the job's grace.
    """

    job: str
    queued: Sequence[datetime]
    missed: Sequence[datetime]
    late: int


def look(store: Store, jobs: JobsFile, now: datetime) -> list[Queued]:
    """Queues every planned time up to `now` that no scheduler has dealt with.

    A job counts from when a scheduler first sees it, and anew when its cron text or zone changes: nothing that was
    planned before is missed.
    """
    return [done for name, job in jobs.jobs.items() if (done := _look(store, jobs, name, job, now)) is not None]


def _look(store: Store, jobs: JobsFile, name: str, job: Job, now: datetime) -> Queued | None:
    with store.session() as session:  # most looks find nothing, and then nothing is locked
        row = session.get(ScheduleRow, name)
        if row is not None and not _changed(row, job):
            seen = read_stamp(row.seen_until)
            if next(planned_after(job.cron, job.time_zone, seen)) > now:
                return None
    if row is None:
        _enter(store, name, job, now)
    with store.transaction() as session:
        row = hold_job(session, name)
        if row is None:
            return None
        if _changed(row, job):
            row.cron, row.time_zone, row.seen_until = job.cron, job.time_zone, stamp(now)
            return None
        seen = read_stamp(row.seen_until)
        if seen >= now:
            return None
        found = due(planned_between(job.cron, job.time_zone, seen, now), now, job.grace_s, job.missed)
        queued = add(session, name, found.queued, "queued", now)
        missed = add(session, name, found.missed, "missed", now)
        row.seen_until = stamp(now)
        if found.first_late is not None and not row.late:
            executed = found.late - found.dropped - len(found.missed)
            payload = notice("missed", name, job, found.first_late, late=found.late, executed=executed)
            tell(session, payload["id"], payload, jobs.told(name, "missed"), now)
        if found.late or found.queued:
            row.late = found.first_late is not None
        return Queued(name, queued, missed, found.late)


def _changed(row: ScheduleRow, job: Job) -> bool:
    return (row.cron, row.time_zone) != (job.cron, job.time_zone)


def _enter(store: Store, name: str, job: Job, now: datetime) -> None:
    """Makes the row of a job; another scheduler may have made it meanwhile."""
    with store.transaction() as session:
        insert = _insert(session.get_bind().dialect.name)
        values = {"cron": job.cron, "time_zone": job.time_zone, "seen_until": stamp(now), "late": False, "locked": 0}
        session.execute(insert(ScheduleRow).values(job=name, **values).on_conflict_do_nothing())


def _insert(dialect: str):
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert
    return insert


def next_planned(jobs: JobsFile, now: datetime) -> tuple[datetime, str]:
    """When the next planned time of any job comes, and of which."""
    return min((next(planned_after(job.cron, job.time_zone, now)), name) for name, job in jobs.jobs.items())
