"""Notices and their deliveries: entered in the transaction that found the change, so that no kill loses one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from evalsvc.store.job_tables import AlertRow, DeliveryRow, NoticeRow, read_stamp, stamp
from evalsvc.store.session import Store
from evalsvc.store.writer import storable_text

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A notice on its way to one channel.

    Attributes:
        tries: How often it was tried, this time included.
        told_at: When the change was found.
    """

    id: int
    notice_id: str
    job: str
    channel: str
    status: str
    tries: int
    told_at: datetime
    payload: dict[str, Any]
    message: str | None
    not_before: datetime
    delivered_at: datetime | None


def note_word(
    session: Session,
    job: str,
    subject: str,
    word: str,
    planned_at: datetime,
    rule: Callable[[str, str], tuple[str, T]],
) -> T | None:
    """Moves the state of a subject on and returns what the rule says to tell.

    What an execution of an earlier planned time found changes nothing: it was overtaken.

    Args:
        session: Of a transaction that holds the job.
        job: Its name.
        subject: Of what the word is.
        word: What was found.
        planned_at: Of the execution that found it.
        rule: From the standing alert and the word to the new alert and the event.
    """
    row = session.get(AlertRow, (job, subject), populate_existing=True)
    if row is not None and row.planned_at > stamp(planned_at):
        return None
    alert, event = rule("" if row is None else row.alert, word)
    if row is None:
        row = AlertRow(job=job, subject=subject, word=word, alert=alert, planned_at=stamp(planned_at))
        session.add(row)
    row.word, row.alert, row.planned_at = word, alert, stamp(planned_at)
    return event


def tell(session: Session, notice_id: str, payload: Mapping[str, Any], channels: Iterable[str], now: datetime) -> None:
    """Enters a notice for some channels; one of that id is there already where its finding was repeated."""
    if session.get(NoticeRow, notice_id) is not None:
        return
    words = {name: storable_text(value) if isinstance(value, str) else value for name, value in payload.items()}
    named = {name: words[name] for name in ("job", "subject", "event")}
    session.add(NoticeRow(id=notice_id, **named, payload={**words, "id": notice_id}, created_at=stamp(now)))
    session.flush()
    session.add_all(DeliveryRow(notice_id=notice_id, channel=name, not_before=stamp(now)) for name in channels)


def claim(store: Store, now: datetime, hold_s: float) -> Delivery | None:
    """Takes the oldest delivery that is due, so that nobody else tries it for `hold_s` seconds."""
    due = DeliveryRow.status == "pending", DeliveryRow.not_before <= stamp(now)
    with store.session() as session:  # most looks find nothing, and then nothing is locked
        found = session.scalars(select(DeliveryRow.id).where(*due).order_by(DeliveryRow.id).limit(20)).all()
    for delivery_id in found:
        with store.transaction() as session:
            later = stamp(now + timedelta(seconds=hold_s))
            taken = session.execute(
                update(DeliveryRow)
                .where(DeliveryRow.id == delivery_id, *due)
                .values(not_before=later, tries=DeliveryRow.tries + 1)
            )
            if taken.rowcount:  # pyright: ignore[reportAttributeAccessIssue]
                row = session.get(DeliveryRow, delivery_id, populate_existing=True)
                notice = None if row is None else session.get(NoticeRow, row.notice_id)
                if row is not None and notice is not None:
                    return _record(row, notice)
    return None


def delivered(store: Store, delivery: Delivery, now: datetime) -> None:
    """Notes that a delivery arrived."""
    _set(store, delivery, status="delivered", delivered_at=stamp(now), message=None)


def not_delivered(store: Store, delivery: Delivery, message: str, again: datetime | None) -> None:
    """Notes why a delivery failed, and when it is tried again; None gives it up."""
    status = {"status": "given_up"} if again is None else {"not_before": stamp(again)}
    _set(store, delivery, message=storable_text(message), **status)


def _set(store: Store, delivery: Delivery, **values: object) -> None:
    with store.transaction() as session:
        session.execute(update(DeliveryRow).where(DeliveryRow.id == delivery.id).values(**values))


def deliveries(store: Store, job: str, most: int = 20) -> list[Delivery]:
    """The latest notices of a job, channel by channel, newest first."""
    query = (
        select(DeliveryRow, NoticeRow)
        .join(NoticeRow, DeliveryRow.notice_id == NoticeRow.id)
        .where(NoticeRow.job == job)
        .order_by(DeliveryRow.id.desc())
        .limit(most)
    )
    with store.session() as session:
        return [_record(row, notice) for row, notice in session.execute(query)]


def _record(row: DeliveryRow, notice: NoticeRow) -> Delivery:
    return Delivery(
        id=row.id,
        notice_id=notice.id,
        job=notice.job,
        channel=row.channel,
        status=row.status,
        tries=row.tries,
        told_at=read_stamp(notice.created_at),
        payload=notice.payload,
        message=row.message,
        not_before=read_stamp(row.not_before),
        delivered_at=None if row.delivered_at is None else read_stamp(row.delivered_at),
    )
