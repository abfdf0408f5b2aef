"""Nights of a job from its planned time to what a person is told: scheduler, worker, run, gate, channel."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from evalsvc.cli.main import main
from evalsvc.jobs.delivering import deliver_one
from evalsvc.jobs.outcome import Ended
from evalsvc.jobs.process import run_arguments
from evalsvc.jobs.scheduler import look
from evalsvc.jobs.spec import Job, load_jobs
from evalsvc.jobs.worker import Worker
from evalsvc.store import executions, queries
from evalsvc.store.session import open_store


class Here:
    """A run in this process, at once: the worker's own command line, whose document is what it printed."""

    def __init__(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capsys.readouterr()
        self._ended = Ended(int(left.value.code or 0), json.loads(out), err.strip().split("\n")[-1])

    def poll(self) -> Ended:
        return self._ended

    def interrupt(self) -> None:
        pass

    def kill(self) -> None:
        pass


@pytest.fixture
def nightly(tmp_path, in_memory):
    """A folder with an experiment, a policy and a jobs file whose channel appends to `told`; and what the arms lose."""
    lost = {"base": 0, "kv": 0}
    in_memory(tmp_path, 150, lost)
    (tmp_path / "policy.yaml").write_text("name: p\nmargin_points: 5\n")
    tell = f"import sys; open({str(tmp_path / 'told')!r}, 'a').write(sys.stdin.read().strip() + '\\n')"
    job = {"cron": "30 2 * * *", "time_zone": "Europe/Berlin", "experiment": "experiment.yaml"}
    job |= {"policy": "policy.yaml", "notify": ["own"], "grace_s": 86400}
    channels = {"own": {"kind": "command", "argv": [sys.executable, "-c", tell]}}
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": {"nightly": job}, "channels": channels}))
    return tmp_path, lost


def told(folder: Path) -> list[tuple[str, str]]:
    file = folder / "told"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(notice["event"], notice["subject"]) for notice in map(json.loads, lines)]


def test_a_regression_is_told_once_and_its_recovery_once(nightly, capsys):
    """The clock changes to summer time between the first night and the second."""
    folder, lost = nightly
    jobs, database = load_jobs(folder / "jobs.yaml"), str(folder / "r.sqlite")
    now = datetime(2026, 3, 27, 12, tzinfo=UTC)
    heard: list[str] = []

    def start(job: Job, held: executions.Execution) -> Here:
        return Here([*run_arguments(job, held, folder), "--db", database], capsys)

    with open_store(database, create=True) as store:
        look(store, jobs, now)
        for loss in (25, 25, 0, 0):
            lost["kv"] = loss
            now += timedelta(days=1)
            look(store, jobs, now)
            look(store, jobs, now)
            worker = Worker(store, jobs, "w", lambda now=now: now, start)
            while worker.step() or worker.busy:
                pass
            while deliver_one(store, jobs, lambda now=now: now, {}, heard.append):
                pass
        done = executions.executions(store)[::-1]
        runs = [run for run in queries.runs(store) if run.kind == "main"]
    assert [f"{one.planned_at:%d %H:%M}" for one in done] == ["28 01:30", "29 01:00", "30 00:30", "31 00:30"]
    assert [(one.status, one.exit_code) for one in done] == [("done", 1), ("done", 1), ("done", 0), ("done", 0)]
    assert [one.run_id for one in done] == [run.id for run in runs] and [run.samples for run in runs] == [300] * 4
    assert told(folder) == [("regressed", "arm:kv"), ("recovered", "arm:kv")], heard
