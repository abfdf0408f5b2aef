"""Schedulers and workers together over a simulated clock, across clock changes, with workers that die."""

import random
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from evalsvc.jobs.calendar import planned_between
from evalsvc.jobs.scheduler import look
from evalsvc.jobs.spec import JobsFile
from evalsvc.jobs.worker import Worker
from evalsvc.store import executions, outbox
from evalsvc.store.executions import waiting_executions

from .conftest import Clock, FakeRun, decided

both = pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)
CRONS = {"nightly": "30 2 * * *", "midnight": "0 0 * * *", "often": "*/45 1-4 * * *"}


@both
@pytest.mark.parametrize(
    ("zone", "begin"),
    [
        ("Europe/Berlin", datetime(2026, 3, 28, 22, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 10, 24, 21, tzinfo=UTC)),
        ("America/Los_Angeles", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ],
)
def test_two_schedulers_and_three_workers_do_every_planned_time_exactly_once(store, zone, begin):
    """Schedulers look in any order and skip looks; a worker dies for good now and then, and a new one comes."""
    base = {"time_zone": zone, "experiment": "e", "policy": "p", "missed": "all", "retries": 9}
    jobs = JobsFile.model_validate({"jobs": {name: base | {"cron": cron} for name, cron in CRONS.items()}})
    clock, rng = Clock(begin), random.Random(5)
    finished = Counter[tuple[str, datetime]]()

    def start(job, held):
        class Counted(FakeRun):
            def poll(self):
                ended = super().poll()
                if ended is not None and ended.exit_code == 0:
                    finished[held.job, held.planned_at] += 1
                return ended

        return Counted(clock, rng.choice([30, 400, 1200]), decided())

    def worker(n):
        return Worker(store, jobs, f"w{n}", clock, start, lease_s=400)

    workers, n, dead = [worker(i) for i in range(3)], 3, 0
    look(store, jobs, begin)
    until = begin + timedelta(hours=9)

    def unfinished():
        return waiting_executions(store, list(CRONS), clock(), later=True) or any(one.busy for one in workers)

    while clock() < until or unfinished():
        for _ in range(2):
            if rng.random() < 0.7:
                look(store, jobs, min(clock(), until))
        rng.shuffle(workers)
        for i, one in enumerate(workers):
            one.step()
            if one.busy and rng.random() < 0.2:
                workers[i], n, dead = worker(n), n + 1, dead + 1
        clock.turn(120)
    planned = {(name, at) for name, cron in CRONS.items() for at in planned_between(cron, zone, begin, until)}
    rows = executions.executions(store, most=1000)
    assert {(row.job, row.planned_at) for row in rows} == planned and len(rows) == len(planned) >= 5
    assert {row.status for row in rows} == {"done"}
    assert finished == Counter(planned), "no run was finished twice"
    assert dead > 2 and any(row.attempt > 1 for row in rows)


@both
def test_schedulers_that_look_at_the_same_moment_queue_once(store, make_jobs, clock):
    jobs = make_jobs(cron="* * * * *", missed="all")
    look(store, jobs, clock())
    clock.turn(1200)
    together = threading.Barrier(4)
    found: list[int] = []

    def one():
        together.wait()
        found.append(sum(len(q.queued) for q in look(store, jobs, clock())))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 0, 0, 20] and len(executions.executions(store)) == 20


@both
def test_workers_that_take_at_the_same_moment_take_different_things(store, clock):
    names = [f"j{n}" for n in range(3)]
    job = {"cron": "0 * * * *", "experiment": "e", "policy": "p"}
    jobs = JobsFile.model_validate({"jobs": dict.fromkeys(names, job)})
    look(store, jobs, clock())
    look(store, jobs, clock.turn(3600))
    together = threading.Barrier(6)
    taken = []

    def one(n):
        together.wait()
        taken.append(executions.lease(store, f"w{n}", clock(), 60, names))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(held.job for held in taken if held) == names


def test_what_was_planned_while_no_scheduler_ran_is_missed_and_told_once(store, make_jobs, clock):
    jobs = make_jobs(missed="skip")
    look(store, jobs, clock())
    look(store, jobs, clock.turn(3 * 86400))
    look(store, jobs, clock.turn(86400))
    assert [e.status for e in executions.executions(store)] == ["missed"] * 4
    (told,) = outbox.deliveries(store, "nightly")
    assert "3 planned times from 2026-06-02 02:30 Europe/Berlin" in told.payload["text"]
    at = datetime(2026, 6, 6, 0, 30, tzinfo=UTC)
    look(store, jobs, at)
    look(store, jobs, at + timedelta(days=2))
    assert [d.payload["event"] for d in outbox.deliveries(store, "nightly")] == ["missed", "missed"]


@pytest.mark.parametrize(
    ("rule", "says"),
    [("skip", "none of them is run"), ("once", "none of them is run"), ("all", "3 of them run now")],
)
def test_a_notice_counts_late_times_alone(store, make_jobs, clock, rule, says):
    """The fourth is on time and no matter of the notice: under `once` it stands for the late ones."""
    jobs = make_jobs(missed=rule, cron="0 * * * *")
    look(store, jobs, clock())
    look(store, jobs, clock.turn(4 * 3600 - clock().minute * 60 - clock().second + 10))
    (told,) = outbox.deliveries(store, "nightly")
    assert told.payload["text"].endswith(f"came while nobody queued; {says}") and told.payload["late"] == 3


def test_a_job_counts_from_when_it_is_first_seen_and_anew_when_its_times_change(store, make_jobs, clock):
    look(store, make_jobs(), clock())
    look(store, make_jobs(cron="0 12 * * *"), clock.turn(5 * 86400))
    assert executions.executions(store) == []
    look(store, make_jobs(cron="0 12 * * *"), clock.turn(86400))
    assert [f"{e.planned_at:%d %H:%M}" for e in executions.executions(store)] == ["07 10:00"]
