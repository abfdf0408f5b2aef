"""Planned times across clock changes, and the rules for missed ones."""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsvc.jobs.calendar import due, planned_after, planned_between

REPORTS = Path(__file__).parents[4] / "shared" / "reference" / "reports.jsonl"
ZONES = ["Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "UTC"]
CRONS = ["30 2 * * *", "0 0 * * *", "*/30 * * * *", "30 1-3 * * *", "15 2 * * 0", "7 */2 * * *"]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def planned(cron: str, zone: str, after: str, count: int = 3) -> list[str]:
    return [f"{at:%d %H:%M}" for at in islice(planned_after(cron, zone, utc(after)), count)]


def test_a_time_that_the_spring_change_skips_runs_once_right_after_the_gap():
    assert planned("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z") == ["29 01:00", "30 00:30", "31 00:30"]


def test_a_time_that_comes_twice_in_autumn_runs_the_first_time_only():
    assert planned("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z") == ["25 00:30", "26 01:30", "27 01:30"]
    assert planned("30 2 * * *", "Europe/Berlin", "2026-10-25T00:40Z", 1) == ["26 01:30"], "looked at in between"


def test_half_hours_follow_the_real_hours_through_both_changes():
    for start in ("2026-03-29T00:10Z", "2026-10-24T23:40Z"):
        found = list(islice(planned_after("*/30 * * * *", "Europe/Berlin", utc(start)), 8))
        assert {b - a for a, b in pairwise(found)} == {timedelta(minutes=30)}


def test_midnights_that_do_not_exist_are_not_lost():
    assert planned("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00Z", 2) == ["04 03:00", "05 02:00"]


@settings(max_examples=60, deadline=None)
@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(ZONES),
    start=st.sampled_from(["2026-03-01T00:00Z", "2026-10-10T00:00Z", "2018-10-20T00:00Z", "2011-12-20T00:00Z"]),
    minutes=st.integers(0, 40 * 1440),
)
def test_what_is_planned_never_hangs_on_when_somebody_looked(cron, zone, start, minutes):
    begin, end = utc(start), utc(start) + timedelta(days=40)
    looked = begin + timedelta(minutes=minutes)
    whole = list(planned_between(cron, zone, begin, end))
    assert whole == sorted(set(whole))
    assert list(planned_between(cron, zone, looked, end)) == [at for at in whole if at > looked]
    assert list(planned_between(cron, zone, begin, looked)) == [at for at in whole if at <= looked]


def report(name: str) -> dict:
    if not REPORTS.is_file():
        pytest.skip(f"{REPORTS} is not here")
    return next(r for line in REPORTS.read_text().splitlines() if (r := json.loads(line))["id"] == name)


def test_the_day_after_the_spring_change_is_not_skipped():
    given = report("SC01")["input"]
    last = utc(given["last_fire"])  # seconds late by jitter
    assert next(planned_after(given["cron"], given["timezone"], last)) == utc("2026-03-09T07:00Z")


def test_a_planned_time_is_of_the_jobs_zone_whatever_the_hosts(monkeypatch):
    given = report("SC03")["input"]
    monkeypatch.setenv("TZ", given["host_tz"])
    first = next(planned_after(given["cron"], given["timezone"], utc(f"{given['day']}T00:00Z")))
    assert first == utc("2026-07-01T08:15Z")


def test_a_weekly_time_is_of_the_wall_clock_not_of_elapsed_hours():
    found = planned("0 16 * * 3", "Europe/Brussels", "2026-03-25T00:00Z", 2)
    assert found == ["25 15:00", "01 14:00"]


HOURS = [utc("2026-06-01T00:00Z") + timedelta(hours=h) for h in range(6)]


@pytest.mark.parametrize(
    ("rule", "now", "queued", "missed"),
    [
        ("skip", HOURS[5], HOURS[5:], HOURS[:5]),
        ("once", HOURS[5], HOURS[5:], HOURS[:5]),
        ("all", HOURS[5], HOURS, []),
        ("skip", HOURS[5] + timedelta(minutes=30), [], HOURS),
        ("once", HOURS[5] + timedelta(minutes=30), HOURS[5:], HOURS[:5]),
        ("all", HOURS[5] + timedelta(minutes=30), HOURS, []),
    ],
)
def test_missed_times_follow_the_rule(rule, now, queued, missed):
    found = due(iter(HOURS), now, 300, rule)
    assert (list(found.queued), list(found.missed)) == (queued, missed)
    assert found.late == (5 if now == HOURS[5] else 6) and found.first_late == HOURS[0]


def test_more_missed_times_than_anybody_wants_are_counted():
    found = due(iter(HOURS), HOURS[5] + timedelta(hours=1), 60, "all", most=2)
    assert (list(found.queued), found.late, found.dropped) == (HOURS[4:], 6, 4)
