"""A worker over a clock that is turned by hand: leases, retries, timeouts, cancelling, stopping."""

from datetime import timedelta

import pytest

from evalsvc.errors import StoreError
from evalsvc.jobs.outcome import Ended
from evalsvc.jobs.scheduler import look
from evalsvc.jobs.worker import Worker
from evalsvc.store import executions, outbox

ERROR = Ended(2, {"error": {"kind": "EngineError", "message": "no"}, "exit_code": 2}, "no")


@pytest.fixture
def queue(store, clock):
    """`queue(jobs, days=1)`: lets so many planned times of `nightly` become due."""

    def call(jobs, days=1):
        look(store, jobs, clock())
        for _ in range(days):
            clock.turn(86400 - (clock.at.hour - 0) * 3600 - clock.at.minute * 60 + 31 * 60)
            look(store, jobs, clock())

    return call


@pytest.fixture
def run(store, clock):
    """`run(worker, seconds, step)`: turns the clock on and steps."""

    def call(worker, seconds, step=10):
        for _ in range(int(seconds // step)):
            worker.step()
            clock.turn(step)

    return call


def only(store):
    (found,) = executions.executions(store)
    return found


def test_a_result_is_stored_with_its_exit_code(store, clock, make_jobs, queue, run, start, reports):
    jobs, starter = make_jobs(), start(120, reports("REGRESSED"))
    queue(jobs)
    run(Worker(store, jobs, "w", clock, starter), 200)
    done = only(store)
    assert (done.status, done.exit_code, done.attempt, done.failures) == ("done", 1, 1, 0)
    assert [d.payload["event"] for d in outbox.deliveries(store, "nightly")] == ["regressed"]
    assert starter.runs[0][0].key == f"nightly {done.planned_at:%Y-%m-%dT%H:%M:%SZ} #{done.id}"


def test_an_error_is_tried_again_later_each_time_under_the_same_key(store, clock, make_jobs, queue, run, start):
    jobs, starter = make_jobs(retries=2, backoff_s=60), start(0, ERROR)
    queue(jobs)
    began = clock()
    run(Worker(store, jobs, "w", clock, starter), 400)
    assert only(store).status == "failed" and only(store).exit_code == 2 and only(store).failures == 3
    at = [(held.started_at, run.end_at - began) for held, run in starter.runs]
    assert [since.total_seconds() for _, since in at] == pytest.approx([0, 70, 200], abs=21)
    assert len({held.key for held, _ in starter.runs}) == 1
    assert [d.payload["event"] for d in outbox.deliveries(store, "nightly")] == ["failed"]


@pytest.mark.parametrize(
    ("ended", "attempts"),
    [
        (Ended(2, {"error": {"kind": "ConfigError", "message": "no"}, "exit_code": 2}, "no"), 1),
        (Ended(1, None, "ModuleNotFoundError"), 2),
        (Ended(0, None, ""), 2),
        (Ended(-9, None, "ended by SIGKILL"), 2),
    ],
)
def test_what_decided_nothing_is_no_verdict(store, clock, make_jobs, queue, run, start, ended, attempts):
    jobs, starter = make_jobs(retries=1, backoff_s=1), start(0, ended)
    queue(jobs)
    run(Worker(store, jobs, "w", clock, starter), 200)
    assert only(store).status == "failed" and len(starter.runs) == attempts
    assert [d.payload["event"] for d in outbox.deliveries(store, "nightly")] == ["failed"]


def test_a_run_without_samples_is_invalid_and_told(store, clock, make_jobs, queue, run, start):
    ended = Ended(4, {"error": {"kind": "EvidenceError", "message": "none"}, "exit_code": 4}, "none")
    jobs = make_jobs()
    queue(jobs)
    run(Worker(store, jobs, "w", clock, start(0, ended)), 60)
    assert (only(store).status, only(store).exit_code) == ("done", 4)
    assert [d.payload["event"] for d in outbox.deliveries(store, "nightly")] == ["invalid"]


@pytest.mark.parametrize("obeys", [True, False])
def test_an_attempt_that_takes_too_long_is_interrupted_then_killed(
    store, clock, make_jobs, queue, run, start, reports, obeys
):
    jobs, starter = make_jobs(timeout_s=100, retries=0), start(10**6, reports(), obeys=obeys)
    queue(jobs)
    run(Worker(store, jobs, "w", clock, starter), 200)
    assert (only(store).status, only(store).message) == ("failed", "timed out after 100 s")
    assert starter.runs[0][1].signals == ["interrupt"] + ["kill"] * (not obeys)


def test_a_lease_is_held_as_long_as_the_run_takes_and_taken_over_when_its_worker_is_gone(
    store, clock, make_jobs, queue, run, start, reports
):
    jobs, first, second = make_jobs(), start(1000, reports()), start(50, reports())
    queue(jobs)
    dead, alive = Worker(store, jobs, "dead", clock, first), Worker(store, jobs, "alive", clock, second)
    run(dead, 300)
    assert not alive.step(), "it is held"
    clock.turn(30)
    assert not alive.step(), "for its whole length"
    clock.turn(31)
    assert alive.step()
    clock.turn(20)
    run(dead, 20)  # it comes back, and ends its own process
    assert first.runs[0][1].signals == ["kill"] and not dead.busy
    run(alive, 100)
    assert only(store).status == "done" and only(store).attempt == 2 and only(store).failures == 1
    assert first.runs[0][0].key == second.runs[0][0].key, "the run is gone on with"


def test_workers_that_die_one_after_another_are_not_replaced_for_ever(store, clock, make_jobs, queue, start, reports):
    jobs = make_jobs(retries=2)
    queue(jobs)
    for n in range(3):
        assert Worker(store, jobs, f"w{n}", clock, start(1000, reports())).step()
        clock.turn(61)
    assert Worker(store, jobs, "last", clock, start(1000, reports())).step()
    assert only(store).status == "failed" and "its worker died" in str(only(store).message)


def test_stopping_returns_the_lease_and_another_goes_on_at_once(store, clock, make_jobs, queue, run, start, reports):
    jobs, first, second = make_jobs(retries=0), start(1000, reports()), start(50, reports())
    queue(jobs)
    stopped = Worker(store, jobs, "stopped", clock, first)
    run(stopped, 60)
    stopped.stop()
    run(stopped, 20)
    assert not stopped.busy and first.runs[0][1].signals == ["interrupt"]
    assert (only(store).status, only(store).failures) == ("queued", 0)
    assert not stopped.step(), "it takes nothing more"
    run(Worker(store, jobs, "next", clock, second), 100)
    assert only(store).status == "done"


@pytest.mark.parametrize("exit_code", [130, 143, -2, -15])
@pytest.mark.parametrize("stopping", [True, False])
def test_a_signal_to_the_worker_and_its_run_uses_no_retry(
    store, clock, make_jobs, queue, run, start, exit_code, stopping
):
    """Where nothing stops the worker, whoever ended its run did not mean it to go on at once."""
    jobs, starter = make_jobs(retries=1, backoff_s=1000), start(30, Ended(exit_code, None, "interrupted"))
    queue(jobs)
    worker = Worker(store, jobs, "w", clock, starter, finish_s=600)
    run(worker, 20)
    if stopping:
        worker.stop()
    run(worker, 30)
    found = only(store)
    assert (found.status, found.failures) == ("queued", 0 if stopping else 1) and not worker.busy
    assert (found.not_before <= clock()) == stopping, "another takes it at once, or after its backoff"


def test_a_worker_that_may_finish_does(store, clock, make_jobs, queue, run, start, reports):
    jobs, starter = make_jobs(), start(100, reports())
    queue(jobs)
    worker = Worker(store, jobs, "w", clock, starter, finish_s=90)
    run(worker, 40)
    worker.stop()
    run(worker, 90)
    assert only(store).status == "done" and starter.runs[0][1].signals == []


def test_cancelling_stops_what_runs_and_ends_what_waits(store, clock, make_jobs, queue, run, start, reports):
    jobs, starter = make_jobs(missed="all"), start(1000, reports())
    queue(jobs, days=2)
    worker = Worker(store, jobs, "w", clock, starter)
    run(worker, 30)
    waits, runs = executions.executions(store)
    executions.cancel(store, waits.id, clock())
    executions.cancel(store, runs.id, clock())
    run(worker, 60)
    assert [e.status for e in executions.executions(store)] == ["cancelled", "cancelled"]
    assert starter.runs[0][1].signals == ["interrupt"] and len(starter.runs) == 1
    again = executions.retry(store, runs.id, clock())
    assert (again.status, again.cancel, again.failures) == ("queued", False, 0)


def test_executions_of_one_job_run_one_at_a_time_in_order(store, clock, make_jobs, queue, start, reports):
    jobs, starter = make_jobs(missed="all"), start(100, reports())
    queue(jobs, days=3)
    workers = [Worker(store, jobs, f"w{n}", clock, starter) for n in range(3)]
    for _ in range(60):
        for worker in workers:
            worker.step()
        assert sum(worker.busy for worker in workers) <= 1
        clock.turn(10)
    planned = [held.planned_at for held, _ in starter.runs]
    assert len(planned) == 3 and planned == sorted(planned)


def test_a_worker_without_database_ends_its_run_before_the_lease_ends(
    store, clock, make_jobs, queue, run, start, reports, monkeypatch
):
    jobs, starter = make_jobs(), start(1000, reports())
    queue(jobs)
    worker = Worker(store, jobs, "w", clock, starter)
    run(worker, 10)
    lease_ends = only(store).lease_until

    def gone(*_: object):
        raise StoreError("gone")

    monkeypatch.setattr(executions, "extend", gone)
    while not starter.runs[0][1].signals:
        worker.step()
        clock.turn(5)
    assert clock() <= lease_ends + timedelta(seconds=5)


def test_an_end_that_cannot_be_stored_is_stored_later(store, clock, make_jobs, queue, run, start, reports, monkeypatch):
    jobs = make_jobs()
    queue(jobs)
    worker = Worker(store, jobs, "w", clock, start(10, reports()))
    calls = []

    def sometimes(*arguments):
        calls.append(1)
        if len(calls) < 3:
            raise StoreError("is locked")
        return real(*arguments)

    from evalsvc.jobs import worker as module

    real = module.store_result
    monkeypatch.setattr(module, "store_result", sometimes)
    run(worker, 50)
    assert only(store).status == "done" and len(calls) == 3


def test_a_result_of_an_overtaken_execution_changes_no_alert(store, clock, make_jobs, queue, run, start, reports):
    jobs = make_jobs(missed="all")
    queue(jobs, days=2)
    newer, older = executions.executions(store)
    executions.cancel(store, older.id, clock())
    run(Worker(store, jobs, "w", clock, start(0, reports("REGRESSED"))), 20)
    executions.retry(store, older.id, clock())
    run(Worker(store, jobs, "w", clock, start(0, reports("PASS"))), 20)
    assert executions.get(store, newer.id).status == executions.get(store, older.id).status == "done"
    assert [d.payload["event"] for d in outbox.deliveries(store, "nightly")] == ["regressed"]
