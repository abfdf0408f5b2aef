"""Stores how an execution ended together with what is to be told of it: one transaction, both or neither."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from evalsvc.jobs.alerts import FAILED, INCIDENT, OK, change
from evalsvc.jobs.notices import notice
from evalsvc.jobs.outcome import RESULTS, Ended
from evalsvc.jobs.spec import JobsFile
from evalsvc.store.executions import Execution, end
from evalsvc.store.outbox import note_word, tell
from evalsvc.store.run_keys import incidents, run_of_key
from evalsvc.store.session import Store


@dataclass(frozen=True)
class Finding:
    """A word about a subject, with what a notice of it says."""

    subject: str
    word: str
    known: dict[str, Any]


def store_result(store: Store, jobs: JobsFile, held: Execution, ended: Ended, now: datetime) -> bool:
    """Ends an execution that decided; false where it was another's meanwhile."""
    run_id = run_of_key(store, held.key)
    found = list(_findings(ended, {} if run_id is None else incidents(store, run_id)))
    with store.transaction() as session:
        fields = {"exit_code": ended.exit_code, "run_id": run_id, "message": ended.message or None}
        if not end(session, held, "done", now, **fields):
            return False
        _tell_all(session, jobs, held, [Finding("", _job_word(ended), {"reason": ended.message}), *found], now, run_id)
    return True


def store_failure(
    store: Store, jobs: JobsFile, held: Execution, exit_code: int | None, why: str, now: datetime
) -> bool:
    """Ends an execution for good that has no result; false where it was another's meanwhile."""
    with store.transaction() as session:
        if not end(session, held, "failed", now, exit_code=exit_code, message=why, failures=held.failures + 1):
            return False
        _tell_all(session, jobs, held, [Finding("", FAILED, {"reason": why, "exit_code": exit_code})], now, None)
    return True


def _job_word(ended: Ended) -> str:
    """INVALID where nothing could be decided about anyone, such as a run without samples."""
    return OK if (ended.document or {}).get("decisions") else RESULTS[ended.exit_code]


def _findings(ended: Ended, broken: dict[str, str]) -> Iterator[Finding]:
    for decision in (ended.document or {}).get("decisions", []):
        candidate = decision["candidate"]
        known = {"candidate": candidate["address"], "verdict": decision["verdict"], "sentence": decision["sentence"]}
        yield Finding(f"arm:{candidate['name']}", decision["verdict"], known | {"exit_code": decision["exit_code"]})
    for arm, what in broken.items():
        yield Finding(f"integrity:{arm}", INCIDENT if what else OK, {"reason": what})


def _tell_all(
    session: Session, jobs: JobsFile, held: Execution, found: list[Finding], now: datetime, run_id: int | None
) -> None:
    job = jobs.jobs[held.job]
    for finding in found:
        event = note_word(session, held.job, finding.subject, finding.word, held.planned_at, change)
        if event is not None:
            known = finding.known | {"run": run_id}
            payload = notice(event, held.job, job, held.planned_at, subject=finding.subject, **known)
            tell(session, payload["id"], payload, jobs.told(held.job, event), now)
