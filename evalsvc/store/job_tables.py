"""Tables of scheduled jobs: what is planned, leased and done, and what is still to be told.

Every time is text, ISO 8601 in UTC with milliseconds, so that texts sort as times do.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from evalsvc.store.schema import Base


def stamp(at: datetime) -> str:
    """A time as it is stored."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


def read_stamp(text: str) -> datetime:
    """A stored time."""
    return datetime.fromisoformat(text)


class ScheduleRow(Base):
    """One job as the schedulers know it.

    Planned times up to `seen_until` were dealt with. `locked` counts writers: an update of it holds the job for one of
    them.
    """

    __tablename__ = "schedules"
    job: Mapped[str] = mapped_column(primary_key=True)
    cron: Mapped[str]
    time_zone: Mapped[str]
    seen_until: Mapped[str]
    late: Mapped[bool] = mapped_column(default=False)  # the last look found planned times that nobody had queued
    locked: Mapped[int] = mapped_column(default=0)


class ExecutionRow(Base):
    """One planned time of a job.

    `status` is queued | running | done | failed | cancelled | missed. `holder` and `lease_until` are those of a worker
    that runs it; `attempt` counts leases and is the fence: a worker whose attempt is not this one lost it.
    """

    __tablename__ = "executions"
    __table_args__ = (UniqueConstraint("job", "planned_at"), Index("ix_executions_waiting", "status", "not_before"))
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(ForeignKey("schedules.job"))
    planned_at: Mapped[str]
    status: Mapped[str]
    not_before: Mapped[str]
    attempt: Mapped[int] = mapped_column(default=0)
    failures: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None]
    lease_until: Mapped[str | None]
    cancel: Mapped[bool] = mapped_column(default=False)
    started_at: Mapped[str | None]
    ended_at: Mapped[str | None]
    exit_code: Mapped[int | None]
    run_id: Mapped[int | None]
    message: Mapped[str | None] = mapped_column(Text)


class AlertRow(Base):
    """The state of a job (`subject` empty), of a candidate (`arm:NAME`) or of an arm's integrity (`integrity:NAME`).

    It lets a change be told once: `word` is the last verdict, or failed | ok | incident; `alert` the word that was told
    and not recovered from.
    """

    __tablename__ = "alerts"
    job: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    word: Mapped[str]
    alert: Mapped[str] = mapped_column(default="")
    planned_at: Mapped[str]


class NoticeRow(Base):
    """One change that is told; `id` is the same however often it is delivered."""

    __tablename__ = "notices"
    id: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str]
    subject: Mapped[str]
    event: Mapped[str]
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[str]


class DeliveryRow(Base):
    """One notice for one channel. `status` is pending | delivered | given_up."""

    __tablename__ = "deliveries"
    __table_args__ = (UniqueConstraint("notice_id", "channel"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    notice_id: Mapped[str] = mapped_column(ForeignKey("notices.id"))
    channel: Mapped[str]
    status: Mapped[str] = mapped_column(default="pending")
    not_before: Mapped[str]
    tries: Mapped[int] = mapped_column(default=0)
    message: Mapped[str | None] = mapped_column(Text)
    delivered_at: Mapped[str | None]


class RunKeyRow(Base):
    """Which run was begun under a key, so that a second attempt goes on with it."""

    __tablename__ = "run_keys"
    key: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
