"""What a notice says."""

import hashlib
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from evalsvc.jobs.spec import Event, Job

SCHEMA = "evalsvc.notice/1"


def notice(
    event: Event, job_name: str, job: Job, planned_at: datetime, *, subject: str = "", **known: Any
) -> dict[str, Any]:
    """A notice as the plain JSON that channels get.

    Its `id` hangs on job, planned time, subject and event alone: found or delivered twice, it is the same.

    Args:
        event: What is told.
        job_name: The job.
        job: Its definition, for the time zone.
        planned_at: Of the execution that found it.
        subject: `arm:NAME`, `integrity:NAME`, or empty for the job itself.
        known: What else is known: `exit_code`, `run`, `candidate`, `verdict`, `sentence`, `reason`, `late`, `executed`.
    """
    identity = "\n".join((job_name, planned_at.isoformat(), subject, event))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    local = planned_at.astimezone(ZoneInfo(job.time_zone))
    head = {"schema": SCHEMA, "id": f"msg_{digest}", "event": event, "job": job_name, "subject": subject}
    when = {"planned_at": planned_at.isoformat(), "planned_local": f"{local:%Y-%m-%d %H:%M} {job.time_zone}"}
    return {**head, **when, **known, "text": _text(event, job_name, when["planned_local"], subject, known)}


def _text(event: Event, job: str, when: str, subject: str, known: dict[str, Any]) -> str:
    what = subject.partition(":")[2] or "the job"
    said = known.get("sentence") or known.get("reason") or ""
    if event == "missed":
        late, executed = known["late"], known["executed"]
        rest = f"{executed} of them {'runs' if executed == 1 else 'run'} now" if executed else "none of them is run"
        return f"{job}: {late} planned time{'s' * (late != 1)} from {when} on came while nobody queued; {rest}"
    word = {
        "regressed": f"{what} REGRESSED",
        "invalid": f"{what} is INVALID",
        "recovered": f"{what} has recovered",
        "incident": f"integrity of {what} is broken",
        "failed": "the job failed",
    }[event]
    return f"{job} ({when}): {word}" + (f"; {said}" if said else "")
