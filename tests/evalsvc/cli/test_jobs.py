"""Schedulers and workers as processes: a killed worker's run is gone on with, a stopped one's is returned."""

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from evalsvc.cli import scheduling
from evalsvc.jobs.scheduler import look
from evalsvc.jobs.spec import load_jobs
from evalsvc.store import executions, queries
from evalsvc.store.job_tables import stamp
from evalsvc.store.session import open_store

SUITES = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl"}]
ARMS = {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=bf16 > kv=fp8:token-head"}}


@pytest.fixture
def planned(write_experiment, tmp_path):
    """A jobs file and a database in which one execution is due; what is told lands in `told`."""
    write_experiment(tmp_path, arms=ARMS, suites=SUITES, probe=None, aa=None)
    (tmp_path / "policy.yaml").write_text("name: p\n")
    tell = [sys.executable, "-c", "import sys; open('told', 'a').write(sys.stdin.read() + '\\n')"]
    job = {"cron": "0 3 * * *", "experiment": "experiment.yaml", "policy": "policy.yaml", "notify": ["own"]}
    jobs = {"jobs": {"nightly": job}, "channels": {"own": {"kind": "command", "argv": tell}}}
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(jobs))
    read = load_jobs(tmp_path / "jobs.yaml")
    with open_store(tmp_path / "r.sqlite", create=True) as store:
        now = datetime.now(UTC)
        look(store, read, now - timedelta(days=1))
        look(store, read, now)
    return tmp_path


def started(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "evalsvc.cli.main", *arguments, "--db", "r.sqlite"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stderr=pipe, stdout=pipe, text=True, env=env)


def only(folder: Path) -> executions.Execution:
    with open_store(folder / "r.sqlite", read_only=True) as store:
        (found,) = executions.executions(store)
        return found


@pytest.mark.slow
def test_the_run_of_a_killed_worker_is_taken_over_and_gone_on_with(planned, pause_at):
    pause = pause_at(1)
    killed = started(planned, "worker", "--lease", "3600", "--poll", "0.2", env=pause.env)
    pause.wait(killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert only(planned).status == "running"
    with contextlib.closing(sqlite3.connect(planned / "r.sqlite", timeout=30)) as connection, connection:
        connection.execute("UPDATE executions SET lease_until = started_at")  # an hour passes
    other = started(planned, "worker", "--poll", "0.2", "--once")
    _, err = other.communicate()
    found = only(planned)
    assert other.returncode == 0 and found.status == "done" and found.attempt == 2, err
    with open_store(planned / "r.sqlite", read_only=True) as store:
        (run,) = queries.runs(store)
    assert (run.id, run.status, run.samples) == (found.run_id, "finished", 28)


@pytest.mark.slow
def test_a_worker_that_is_asked_to_stop_returns_its_run_and_run_due_goes_on_with_it(planned, pause_at):
    pause = pause_at(1)
    stopped = started(planned, "worker", "--poll", "0.2", "--finish", "1", env=pause.env)
    pause.wait(stopped)
    stopped.send_signal(signal.SIGTERM)
    _, err = stopped.communicate()
    returned = only(planned)
    assert stopped.returncode == 0 and (returned.status, returned.failures) == ("queued", 0), err
    due = started(planned, "run-due", "--json")
    out, err = due.communicate()
    document = json.loads(out)
    assert due.returncode == document["exit_code"] == only(planned).exit_code, err
    with open_store(planned / "r.sqlite", read_only=True) as store:
        assert [(run.status, run.samples) for run in queries.runs(store)] == [("finished", 28)]


def test_jobs_are_listed_with_zone_and_next_time_before_anything_ran(evalsvc_json, planned):
    code, found = evalsvc_json("jobs", "ls", "--jobs", planned / "jobs.yaml", "--db", planned / "none.sqlite")
    assert code == 0 and found["executions"] == []
    assert found["jobs"][0]["time_zone"] == "UTC" and found["jobs"][0]["next"].endswith("03:00:00+00:00")


def test_executions_are_shown_cancelled_and_retried(evalsvc, evalsvc_json, planned):
    db = planned / "r.sqlite"
    assert evalsvc("jobs", "cancel", 1, "--db", db) == (0, "execution 1 of nightly: cancelled\n", "")
    assert evalsvc("jobs", "cancel", 1, "--db", db)[0] == 2
    code, found = evalsvc_json("jobs", "show", "nightly", "--db", db)
    assert code == 0 and [e["status"] for e in found["executions"]] == ["cancelled"]
    assert evalsvc_json("jobs", "retry", 1, "--db", db)[1]["executions"][0]["status"] == "queued"
    code, out, err = evalsvc("jobs", "show", "nobody", "--db", db)
    assert (code, out) == (2, "") and "no executions" in err
    assert "missed" in evalsvc("jobs", "ls", "--jobs", planned / "jobs.yaml", "--db", db)[1]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("run-due",), "nothing is due"),
        (("worker", "--once"), "nothing is queued that could be taken"),
        (("worker", "--drain"), "nothing is queued that could be taken"),
        (("scheduler", "--once"), "nothing became due"),
    ],
)
def test_a_command_that_finds_nothing_to_do_says_so_and_what_comes_next(evalsvc, planned, command, why):
    code, out, err = evalsvc(*command, "--jobs", planned / "jobs.yaml", "--db", planned / "empty.sqlite")
    assert (code, out) == (0, "")
    assert re.fullmatch(rf"{why}; next is nightly, planned for \d{{4}}-\d\d-\d\d 03:00 UTC\n", err)


def test_what_another_worker_holds_is_said_where_nothing_is_left(evalsvc, planned, monkeypatch):
    monkeypatch.chdir(planned)  # where the notice of the late execution lands
    with open_store(planned / "r.sqlite") as store:
        executions.lease(store, "other:1", datetime.now(UTC), 3600, ["nightly"])
    code, _, err = evalsvc("worker", "--once", "--jobs", planned / "jobs.yaml", "--db", planned / "r.sqlite")
    assert code == 0 and err.endswith("execution 1 of nightly: running, held by other:1\n")


def test_what_another_worker_took_was_due(evalsvc_json, planned, monkeypatch):
    db, read = planned / "r2.sqlite", load_jobs(planned / "jobs.yaml")
    with open_store(db, create=True) as store:
        look(store, read, datetime.now(UTC) - timedelta(days=1))

    def taken(store, jobs):
        found = schedule(store, jobs)
        assert executions.lease(store, "other:1", datetime.now(UTC), 3600, ["nightly"]) is not None
        return found

    schedule, said = scheduling.schedule, list[str]()
    monkeypatch.chdir(planned)  # where the notice of the late execution lands
    monkeypatch.setattr(scheduling, "schedule", taken)
    monkeypatch.setattr(scheduling, "note", said.append)
    code, document = evalsvc_json("run-due", "--jobs", planned / "jobs.yaml", "--db", db)
    assert code == 0 and len(document["queued"]) == 1 and document["exit_codes"] == []
    assert any(line.startswith("nothing is left for this worker; next is nightly, planned for ") for line in said)
    assert said[-1] == "execution 1 of nightly: running, held by other:1"


@pytest.mark.parametrize(
    ("at", "says"),
    [("2998-01-02T03:04:05Z", "waits until 2998-01-02"), ("2024-01-02T03:04:05Z", "could be taken since 2024-01-02")],
)
def test_what_waits_is_said_with_its_day(planned, monkeypatch, at, says):
    said = list[str]()
    monkeypatch.setattr(scheduling, "note", said.append)
    with open_store(planned / "r.sqlite") as store:
        with contextlib.closing(sqlite3.connect(planned / "r.sqlite", timeout=30)) as connection, connection:
            connection.execute("UPDATE executions SET not_before = ?", (stamp(datetime.fromisoformat(at)),))
        scheduling.say_idle(store, load_jobs(planned / "jobs.yaml"), "nothing")
    assert said[-1] == f"execution 1 of nightly: queued, {says} 03:04:05 UTC"


def test_new_and_key_contradict_each_other(evalsvc, planned):
    assert "--new and --key" in evalsvc("run", planned / "experiment.yaml", "--new", "--key", "x")[2]


def test_a_job_whose_files_are_not_there_is_said_before_its_night_comes(evalsvc, evalsvc_json, tmp_path):
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("jobs:\n  n: {cron: '0 2 * * *', experiment: gone.yaml, policy: p.yaml}\n")
    (tmp_path / "p.yaml").write_text("name: p\n")
    asked = ("jobs", "ls", "--jobs", jobs, "--db", tmp_path / "none.sqlite")
    code, out, err = evalsvc(*asked)
    says = f"job n: its experiment {tmp_path / 'gone.yaml'} is not there"
    assert code == 0 and "0 2 * * *" in out and err == f"{jobs}: {says}\n"
    assert evalsvc_json(*asked)[1]["absent"] == [says]


@pytest.mark.parametrize("asked", ["show", "cancel", "retry"])
def test_a_number_larger_than_any_row_has_is_one_sentence(evalsvc, db, asked):
    code, out, err = evalsvc("jobs", asked, 10**30, "--db", db)
    assert (code, out) == (2, "") and err == f"error: {db}: holds no number as large as was asked for\n"
