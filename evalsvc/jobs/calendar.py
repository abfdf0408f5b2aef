"""Planned times of a cron text in a time zone, and which of them are queued: pure functions of the clock's reading.

As in Debian's cron (the rules are cronsim's): a fixed time that a clock change skips runs once, right after the gap; a
fixed time that comes twice runs the first time only; jobs with a `*` in minute or hour follow the real hours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
MOST = 1000  # planned times of a job that one look deals with singly
_BACK = timedelta(days=2)  # before the time asked for: a clock change can move a planned time by an hour at most


def planned_after(cron: str, time_zone: str, after: datetime) -> Iterator[datetime]:
    """Planned times later than `after`, in UTC, without end.

    The same for every `after`: what is planned never hangs on when somebody looked.
    """
    zone, latest = ZoneInfo(time_zone), after
    for local in CronSim(cron, (after - _BACK).astimezone(zone)):
        at = local.astimezone(UTC)
        if at > latest:
            latest = at
            yield at


def planned_between(cron: str, time_zone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Planned times later than `after` and not later than `until`."""
    for at in planned_after(cron, time_zone, after):
        if at > until:
            return
        yield at


@dataclass(frozen=True)
class Due:
    """What became due of one job.

    Attributes:
        queued: Planned times to execute.
        missed: Planned times that nobody will execute, the latest of them only where they are many.
        late: Planned times that were not found within the job's grace, executed or not.
        first_late: The earliest of them.
        dropped: Late ones beyond those listed.
    """

    queued: tuple[datetime, ...] = ()
    missed: tuple[datetime, ...] = ()
    late: int = 0
    first_late: datetime | None = None
    dropped: int = 0


def due(
    planned: Iterator[datetime], now: datetime, grace_s: float, missed: Literal["skip", "once", "all"], most: int = MOST
) -> Due:
    """Which planned times are executed.

    Args:
        planned: All that became due since the last look, oldest first.
        now: The clock's reading.
        grace_s: Seconds within which one is on time.
        missed: The job's rule.
        most: Planned times that are dealt with singly; older ones are counted alone.
    """
    late: list[datetime] = []
    on_time: list[datetime] = []
    count, first = 0, None
    for at in planned:
        if (now - at).total_seconds() <= grace_s:
            on_time.append(at)
            continue
        count, first = count + 1, first or at
        late.append(at)
        if len(late) > most:
            del late[0]
    listed = tuple(late)
    if missed == "all":
        queued, left = (*listed, *on_time), ()
    elif missed == "skip" or on_time:
        queued, left = tuple(on_time), listed
    else:
        queued, left = listed[-1:], listed[:-1]
    return Due(queued, left, count, first, count - len(listed))
