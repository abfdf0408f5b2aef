"""Jobs, executions and notices as tables and as plain JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from rich import box
from rich.console import RenderableType
from rich.table import Table

from evalsvc.cli.common import one_line
from evalsvc.jobs.calendar import planned_after
from evalsvc.jobs.outcome import meaning
from evalsvc.jobs.spec import JobsFile
from evalsvc.store.executions import Execution
from evalsvc.store.outbox import Delivery


def jobs_document(jobs: JobsFile, now: datetime) -> list[dict[str, Any]]:
    """Jobs with their next planned time, in UTC and in their own zone."""
    found = []
    for name, job in jobs.jobs.items():
        at = next(planned_after(job.cron, job.time_zone, now))
        local = at.astimezone(ZoneInfo(job.time_zone))
        found.append(
            {"job": name, **job.model_dump(mode="json"), "next": at.isoformat(), "next_local": local.isoformat()}
        )
    return found


def executions_document(found: Sequence[Execution]) -> list[dict[str, Any]]:
    """Executions, each with its exit code's meaning."""
    return [_plain(asdict(one)) | {"meaning": meaning(one.exit_code) or None} for one in found]


def deliveries_document(found: Sequence[Delivery]) -> list[dict[str, Any]]:
    """Notices, channel by channel."""
    return [_plain(asdict(one)) for one in found]


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields.items()}


def render_jobs(jobs: JobsFile, now: datetime) -> RenderableType:
    """A line for each job."""
    table = _table("job", "cron", "time zone", "next there", "next UTC", "missed")
    for name, job in jobs.jobs.items():
        at = next(planned_after(job.cron, job.time_zone, now))
        local = at.astimezone(ZoneInfo(job.time_zone))
        table.add_row(name, job.cron, job.time_zone, f"{local:%Y-%m-%d %H:%M}", f"{at:%m-%d %H:%M}", job.missed)
    return table


def render_executions(found: Sequence[Execution], *, messages: bool = False) -> RenderableType:
    """A line for each execution."""
    table = _table("", "job", "planned, UTC", "status", "run", "exit", *(["message"] if messages else []))
    for one in found:
        code = "" if one.exit_code is None else f"{one.exit_code} {meaning(one.exit_code)}"
        cells = [str(one.id), one_line(one.job), f"{one.planned_at:%Y-%m-%d %H:%M}", one.status, str(one.run_id or "")]
        table.add_row(*cells, code, *([one_line(one.message or "")] if messages else []))
    return table


def render_deliveries(found: Sequence[Delivery]) -> RenderableType:
    """A line for each notice and channel."""
    table = _table("told, UTC", "event", "channel", "delivery", "tries", "text")
    for one in found:
        said = one_line(str(one.payload.get("text", ""))) + (f" · {one_line(one.message)}" if one.message else "")
        event = one_line(str(one.payload.get("event", "")))
        told = f"{one.told_at:%Y-%m-%d %H:%M}"
        table.add_row(told, event, one_line(one.channel), one.status, str(one.tries), said)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
