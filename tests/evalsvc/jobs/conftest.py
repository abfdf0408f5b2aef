"""A clock that is turned by hand, a database, runs that end when a test says so."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evalsvc.jobs.outcome import Ended
from evalsvc.jobs.spec import Job, JobsFile
from evalsvc.store.executions import Execution
from evalsvc.store.session import Store, open_store


class Clock:
    """Reads what it is set to."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at

    def turn(self, seconds: float) -> datetime:
        self.at += timedelta(seconds=seconds)
        return self.at


class FakeRun:
    """A run that ends at a time, or when it is ended."""

    def __init__(self, clock: Clock, seconds: float, ended: Ended, *, obeys: bool = True) -> None:
        self.clock, self.end_at, self.ended, self.obeys = clock, clock() + timedelta(seconds=seconds), ended, obeys
        self.signals: list[str] = []

    def poll(self) -> Ended | None:
        return self.ended if self.clock() >= self.end_at else None

    def interrupt(self) -> None:
        self.signals.append("interrupt")
        if self.obeys:
            self.end_at, self.ended = self.clock(), Ended(130, None, "interrupted")

    def kill(self) -> None:
        self.signals.append("kill")
        self.end_at, self.ended = self.clock(), Ended(-9, None, "ended by SIGKILL")


def decided(word: str = "PASS", arm: str = "fp8", code: int | None = None) -> Ended:
    """How a run ends that decided about one candidate."""
    code = {"PASS": 0, "REGRESSED": 1, "INCONCLUSIVE": 3, "INVALID": 4}[word] if code is None else code
    candidate = {"name": arm, "address": f"1:{arm}"}
    decision = {"candidate": candidate, "verdict": word, "sentence": f"{word}: so it is", "exit_code": code}
    return Ended(code, {"schema": "evalsvc.run/1", "run": 1, "exit_code": code, "decisions": [decision]}, "")


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 6, 1, 12, tzinfo=UTC))


@pytest.fixture
def store(tmp_path, request) -> Any:
    """An SQLite file; where a test asks for `postgresql`, a database of the server of this test run."""
    kind = getattr(request, "param", "sqlite")
    url = tmp_path / "q.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres").new()
    with open_store(url, create=True) as store:
        yield store


@pytest.fixture
def make_jobs() -> Callable[..., JobsFile]:
    """`make_jobs(**keys)`: one job `nightly` at 02:30 in Berlin, told to `team`; keys replace."""

    def call(**keys: Any) -> JobsFile:
        job = {"cron": "30 2 * * *", "time_zone": "Europe/Berlin", "experiment": "e.yaml", "policy": "p.yaml"}
        jobs = {"nightly": job | {"notify": ["team"]} | keys}
        channels = {"team": {"kind": "command", "argv": ["true"]}}
        return JobsFile.model_validate({"jobs": jobs, "channels": channels})

    return call


@pytest.fixture
def start(clock: Clock) -> Callable[..., Any]:
    """`start(seconds, ended)`: a starter of runs that remembers them in `.runs`."""

    def make(seconds: float, ended: Ended, **keys: Any):
        def call(job: Job, held: Execution) -> FakeRun:
            run = FakeRun(clock, seconds, ended, **keys)
            call.runs.append((held, run))  # pyright: ignore[reportFunctionMemberAccess]
            return run

        call.runs = []  # pyright: ignore[reportFunctionMemberAccess]
        return call

    return make


@pytest.fixture
def reports(store: Store):
    return decided
