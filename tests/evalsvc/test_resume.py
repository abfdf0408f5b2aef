"""Killed anywhere and run again, a run says what an uninterrupted one says, although its batches differ."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from evalsvc import runner
from evalsvc.cli.deciding import decide_stored
from evalsvc.policy import Policy
from evalsvc.store import queries
from evalsvc.store.session import Store, open_store

ARMS = {
    "bf16": {"plan": "w=bf16"},
    "kv": {"plan": "kv=bf16 > kv=fp8:tensor:calibrated", "calibration": "calibration.jsonl"},
}


def verdicts(database: Path) -> Any:
    """Every number and word of the decisions about a database's main run."""
    with open_store(database, read_only=True) as store:
        baseline, *candidates = queries.arms(store, min(run.id for run in queries.runs(store)))
        decisions = [decide_stored(store, baseline, arm, Policy(name="p")).to_json() for arm in candidates]
    return [(decision["verdict"], decision["sentence"], decision["rows"]) for decision in decisions]


def die_at(patch: pytest.MonkeyPatch, number: int, committed: bool) -> None:
    """SIGKILL to this process at its nth write transaction, just before or just after the commit."""
    count = 0
    transaction = Store.transaction

    @contextmanager
    def counted(store: Store) -> Iterator[Any]:
        nonlocal count
        count += 1
        last = count == number
        with transaction(store) as session:
            yield session
            if last and not committed:
                session.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    patch.setattr(Store, "transaction", counted)


def killed(call: Callable[[], Any], number: int, committed: bool) -> bool:
    """Runs `call` in a copy of this process that dies at its nth transaction; False when it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            die_at(pytest.MonkeyPatch(), number, committed)
            call()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 3)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the copy ended with status {status}"
    return status == signal.SIGKILL


@pytest.fixture
def often(monkeypatch) -> None:
    """Samples are stored three at a time and never because they are old."""
    monkeypatch.setattr(runner, "FLUSH_SAMPLES", 3)
    monkeypatch.setattr(runner, "FLUSH_SECONDS", float("inf"))


@pytest.fixture
def small(often, write_experiment, tmp_path) -> Path:
    """Two arms and an A/A of ten samples each."""
    suites = [
        {"name": "tasks", "kind": "lmeval", "tasks": ["sums/one.yaml"], "limit": 3},
        {"name": "formats", "kind": "formats", "cases": "formats.jsonl", "limit": 2},
    ]
    return write_experiment(tmp_path / "experiment", arms=ARMS, suites=suites)


def check_kills(path, execute_file, contents, folder: Path, moments: Iterable[tuple[int, bool]]) -> int:
    """Kills a fresh run at each moment, up to the first one behind its end, and runs it again; returns how many."""
    execute_file(path, folder / "whole.sqlite")
    whole = contents(folder / "whole.sqlite"), verdicts(folder / "whole.sqlite")
    deaths = 0
    for number, committed in moments:
        database = folder / f"{number}-{committed}.sqlite"
        if not killed(lambda database=database: execute_file(path, database), number, committed):
            break
        deaths += 1
        execute_file(path, database)
        assert (contents(database), verdicts(database)) == whole, f"killed at transaction {number}, {committed=}"
    return deaths


def test_killed_at_a_few_transactions(small, execute_file, contents, tmp_path):
    """While items are asked, between an arm's last sample and its end, and in the A/A."""
    moments = [(9, True), (12, False), (18, True), (22, False)]
    assert check_kills(small, execute_file, contents, tmp_path, moments) == len(moments)


def test_killed_at_every_transaction(often, in_memory, execute_file, contents, tmp_path):
    """Before and after its commit; the answers are in memory, so that all of them take seconds."""
    moments = ((number, committed) for number in count(1) for committed in (False, True))
    path = in_memory(tmp_path, 4, {"base": 0, "kv": 25})
    assert check_kills(path, execute_file, contents, tmp_path, moments) > 30


def test_a_group_killed_while_its_arms_are_at_different_places(
    small, write_experiment, execute_file, contents, tmp_path
):
    third = {"weights": {"plan": "w=bf16 > w=fp8"}}
    suites = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl"}]
    path = write_experiment(small.parent, arms=ARMS | third, suites=suites, aa=None)
    execute_file(path, tmp_path / "whole.sqlite")
    for number in (9, 13):
        database = tmp_path / f"{number}.sqlite"
        assert killed(lambda database=database: execute_file(path, database), number, committed=True)
        assert len(set(stored_by_arm(database))) > 1
        execute_file(path, database)
        assert stored_by_arm(database) == [14, 14, 14]
        assert contents(database) == contents(tmp_path / "whole.sqlite")
        assert verdicts(database) == verdicts(tmp_path / "whole.sqlite")


def stored_by_arm(database: Path) -> list[int]:
    """How many samples each arm has."""
    counted = "SELECT count(s.id) FROM arms a LEFT JOIN samples s ON s.arm_id = a.id GROUP BY a.id ORDER BY a.id"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return [row[0] for row in connection.execute(counted)]


def test_killed_again_and_again(small, execute_file, contents, tmp_path):
    execute_file(small, tmp_path / "whole.sqlite")
    rng = random.Random(5)
    deaths = 0
    while killed(lambda: execute_file(small, tmp_path / "often.sqlite"), rng.randrange(3, 14), rng.random() < 0.5):
        deaths += 1
        assert deaths < 50
    assert deaths > 2
    assert contents(tmp_path / "often.sqlite") == contents(tmp_path / "whole.sqlite")
    assert verdicts(tmp_path / "often.sqlite") == verdicts(tmp_path / "whole.sqlite")


def command(path: Path, database: Path) -> list[str]:
    return [sys.executable, "-m", "evalsvc.cli.main", "run", str(path), "--db", str(database), "--json"]


def kill_command(path: Path, database: Path, pause: Any, sent: signal.Signals) -> str:
    """Sends a signal to the command where it pauses; returns what it had said, once all of its processes are gone."""
    process = subprocess.Popen(
        command(path, database),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=pause.env,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where the tests run in the background
    )
    pause.wait(process)
    assert words(database) == {"running"}
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)  # as a terminal does
        pause.go_on()
    elif sent == signal.SIGTERM:
        process.send_signal(sent)
        pause.go_on()
    else:
        process.send_signal(sent)  # what it had started still waits, and has to end by itself
    _, said = process.communicate()  # ends when nobody holds stderr any more
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(sent, -sent), said
    return said


def words(database: Path) -> set[str]:
    """What is said of the runs of a database."""
    with open_store(database, read_only=True) as store:
        return {run.status for run in queries.runs(store)}


def finish_command(path: Path, database: Path) -> dict[str, Any]:
    done = subprocess.run(command(path, database), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "goes on from what is stored" in done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_command_and_its_processes_killed_and_run_again(
    write_experiment, execute_file, contents, pause_at, tmp_path
):
    """Two jobs side by side: the arms that share a prefill stage, and one that shares nothing."""
    suites = [
        {"name": "tools", "kind": "toolcall", "cases": "tools.jsonl"},
        {"name": "formats", "kind": "formats", "cases": "formats.jsonl"},
    ]
    keys: dict[str, Any] = {"suites": suites, "arms": ARMS | {"weights": {"plan": "w=fp8"}}}
    path = write_experiment(tmp_path / "experiment", workers=2, batch=5, **keys)
    database, whole = tmp_path / "runs.sqlite", tmp_path / "whole.sqlite"
    kill_command(path, database, pause_at(16), signal.SIGKILL)
    left = sum(stored_by_arm(database))
    assert 16 <= left < 4 * 18
    assert words(database) == {"interrupted"}
    for sent, name in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "interrupted by SIGTERM")):
        said = kill_command(path, database, pause_at(sum(stored_by_arm(database)) + 1), sent)
        assert said.endswith(f"what was answered is stored; the same command goes on from there\nerror: {name}\n")
        assert "Traceback" not in said and words(database) == {"interrupted"}
    assert left < sum(stored_by_arm(database)) < 4 * 18
    document = finish_command(path, database)
    execute_file(write_experiment(path.parent, **keys), whole)  # one process, batches of another size
    assert contents(database) == contents(whole)
    assert verdicts(database) == verdicts(whole)
    assert [arm["errors"] for arm in document["arms"]] == [0] * 4


@pytest.mark.slow
@pytest.mark.model
def test_the_real_model_killed_and_run_again(small_model, often, execute_file, contents, pause_at, tmp_path):
    """Real prompts of real length, where neighbours in a batch would show if they could."""
    data = Path(__file__).resolve().parents[2] / "data"
    experiment = {
        "name": "killed",
        "model": str(small_model),
        "baseline": "bf16",
        "arms": {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=bf16 > kv=fp8:token-head"}},
        "suites": [
            {"name": "tasks", "kind": "lmeval", "tasks": [str(data / "tasks" / "addition")], "limit": 4},
            {"name": "formats", "kind": "formats", "cases": str(data / "suites" / "formats.jsonl"), "limit": 4},
        ],
        "aa": {"batch": 3},
    }
    path = tmp_path / "experiment.yaml"
    path.write_text(json.dumps(experiment))
    whole, database = tmp_path / "whole.sqlite", tmp_path / "runs.sqlite"
    execute_file(path, whole)
    assert killed(lambda: execute_file(path, database), 12, committed=True)
    left = stored_by_arm(database)
    assert min(left[:2]) > 0 and sum(left) < 48, "while the two arms answer together"
    said = kill_command(path, database, pause_at(sum(left) + 1), signal.SIGINT)
    assert said.endswith("error: interrupted\n") and sum(stored_by_arm(database)) > sum(left)
    execute_file(path, database)
    assert contents(database) == contents(whole)
    assert verdicts(database) == verdicts(whole)


def test_own_prompts_and_their_divergence_come_back_after_a_kill(
    small, write_experiment, execute_file, contents, tmp_path
):
    suites = [{"name": "own", "kind": "prompts", "cases": "own.jsonl"}]
    path = write_experiment(small.parent, arms=ARMS, suites=suites, probe=None, aa=None)
    prompts = [{"id": f"p{n}", "prompt": f"Say {n}:", "max_tokens": 5} for n in range(4)]
    (path.parent / "own.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    execute_file(path, tmp_path / "whole.sqlite")
    for number in (6, 8, 9):
        database = tmp_path / f"{number}.sqlite"
        assert killed(lambda database=database: execute_file(path, database), number, committed=True)
        execute_file(path, database)
        assert contents(database) == contents(tmp_path / "whole.sqlite"), f"killed at transaction {number}"
