"""What is computed anew, what is copied, and that it is said: an unchanged arm is no reason to skip a night."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evalsvc.limits import Standing
from evalsvc.policy import Policy
from evalsvc.prepared import prepare
from evalsvc.store import queries
from evalsvc.store.reuse import copy_samples
from evalsvc.store.session import open_store
from evalsvc.targets.embedded import EmbeddedTarget

ARMS = {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=bf16 > kv=fp8:token-head"}}
SUITES = [
    {"name": "tasks", "kind": "lmeval", "tasks": ["sums/one.yaml"], "limit": 3},
    {"name": "formats", "kind": "formats", "cases": "formats.jsonl", "limit": 3},
]
EACH = 12  # samples of an arm: three log-likelihood items through two stages, three answers of each of two families


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Arms that were asked something, once for each request."""
    heard: list[str] = []
    submit = EmbeddedTarget.submit

    def counted(target: EmbeddedTarget, requests: Any) -> Any:
        heard.extend(name for request in requests for name in request.arms)
        return submit(target, requests)

    monkeypatch.setattr(EmbeddedTarget, "submit", counted)
    return heard


@pytest.fixture(scope="module")
def finished(write_experiment, execute_file, tmp_path_factory) -> Path:
    """A folder with an experiment and the database of its finished run of two arms and its A/A."""
    folder = tmp_path_factory.mktemp("once")
    execute_file(write_experiment(folder / "experiment", arms=ARMS, suites=SUITES), folder / "r.sqlite")
    return folder


@pytest.fixture
def once(finished, tmp_path) -> tuple[Path, Path]:
    """Experiment file and database of that run, to go on with."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "experiment" / "experiment.yaml", tmp_path / "r.sqlite"


def samples(database: Path, run_id: int) -> list[tuple[Any, ...]]:
    """All that a run's samples, scores and turns say; not their times, which are those of the machine."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(
            "SELECT a.name, i.suite, i.item_id, s.through, s.status, s.answer, s.rendered_hash, c.scoring_version,"
            " c.metric, c.filter, c.value, t.turn, t.token_ids FROM samples s JOIN arms a ON a.id = s.arm_id"
            " JOIN items i ON i.id = s.item_pk JOIN scores c ON c.sample_id = s.id LEFT JOIN turns t"
            " ON t.sample_id = s.id WHERE s.run_id = ? ORDER BY 1, 2, 3, 4, 8, 9, 10, 12",
            (run_id,),
        ).fetchall()


def test_a_new_run_of_unchanged_arms_computes_everything_the_a_a_too(once, execute_file, asked):
    path, database = once
    run_id, heard = execute_file(path, database, new=True)
    with open_store(database, read_only=True) as store:
        runs = queries.runs(store)
    assert run_id == 3 and [(run.kind, run.linked_run_id, run.samples) for run in runs[2:]] == [
        ("main", None, 2 * EACH),
        ("aa", 3, EACH),
    ]
    assert asked.count("bf16") == 2 * EACH and asked.count("kv") == EACH, "its own A/A, not the first run's"
    assert not any("copied" in note for note in heard.notes)
    assert samples(database, 3) == samples(database, 1)


def test_a_scheduled_key_computes_a_run_of_its_own_each_night(once, execute_file, asked):
    path, database = once
    assert execute_file(path, database, key="nightly 1")[0] == 3
    assert asked.count("kv") == EACH
    assert execute_file(path, database, key="nightly 2")[0] == 5
    assert asked.count("kv") == 2 * EACH and asked.count("bf16") == 4 * EACH
    assert execute_file(path, database, key="nightly 2")[0] == 5 and asked.count("kv") == 2 * EACH, "it is finished"


def test_reuse_copies_the_same_arms_answers_says_so_and_computes_the_a_a(once, execute_file, asked):
    path, database = once
    run_id, heard = execute_file(path, database, reuse=True)
    assert run_id == 3 and asked == ["bf16"] * EACH, "the A/A alone"
    assert f"bf16: {EACH} of {EACH} samples are copied ({EACH} from 1:bf16)" in heard.notes
    assert samples(database, 3) == samples(database, 1) and len(samples(database, 3)) > 2 * EACH
    with open_store(database, read_only=True) as store:
        copied, again = queries.arms(store, 3), queries.arms(store, 4)
        totals = [queries.arm_totals(store, arm.id) for arm in queries.arms(store, 1) + copied]
    assert [arm.details["reused"] for arm in copied] == [{"1:bf16": EACH}, {"1:kv": EACH}]
    assert [(arm.status, arm.proof_status) for arm in copied] == [("finished", "matched")] * 2
    assert "reused" not in again[0].details
    assert totals[:2] == totals[2:], "their times are those of the run that computed them"


def test_reuse_computes_what_differs_by_a_hash(once, execute_file, write_experiment, asked, tmp_path):
    _, database = once
    more = [SUITES[0], SUITES[1] | {"limit": 5}]
    other = ARMS | {"kv": {"plan": "kv=bf16 > kv=fp8:token-head", "note": "the same"}, "w": {"plan": "w=fp8"}}
    path = write_experiment(tmp_path / "experiment", arms=other, suites=more, aa=None)
    run_id, heard = execute_file(path, database, reuse=True)
    assert {name: asked.count(name) for name in other} == {"bf16": 4, "kv": 4, "w": EACH + 4}
    assert "w: 0 of 16 samples are copied" in heard.notes
    with open_store(database, read_only=True) as store:
        assert [arm.details.get("reused") for arm in queries.arms(store, run_id)] == [
            {"1:bf16": EACH},
            {"1:kv": EACH},
            None,
        ]
        assert queries.runs(store)[-1].samples == 3 * 16


def test_scores_of_another_version_and_a_doubtful_arm_are_not_copied(once):
    path, database = once
    prepared = prepare(path)
    wanted = {question.key for question in prepared.asked}
    versions = {question.suite.name: question.suite.scoring_version for question in prepared.asked}
    with open_store(database) as store:
        arms = queries.arms(store, 1)
        with store.transaction() as session:
            connection = session.connection()
            connection.exec_driver_sql(
                "INSERT INTO runs SELECT 9, experiment, experiment_hash, kind, linked_run_id,"
                " baseline, seed, 'running', created_at, NULL, resolved FROM runs WHERE id = 1"
            )
            connection.exec_driver_sql(
                "INSERT INTO arms (id, run_id, name, fingerprint, plan, stages, injected, details, status, expected)"
                " SELECT 9 + id, 9, name, fingerprint, plan, stages, injected, details, 'running', expected"
                " FROM arms WHERE run_id = 1"
            )
            connection.exec_driver_sql("UPDATE arms SET proof_status = 'mismatched' WHERE id = 2")
        assert copy_samples(store, 9 + arms[0].id, wanted, versions | {"formats": "another"}) == {"1:bf16": 6}
        assert copy_samples(store, 9 + arms[0].id, wanted, versions) == {"1:bf16": 6}, "what is there already stays"
        assert copy_samples(store, 9 + arms[1].id, wanted, versions) == {}


def test_reuse_goes_on_with_a_run_that_was_killed(once, execute_file, asked):
    path, database = once
    execute_file(path, database, reuse=True)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET status = 'running' WHERE id = 3")
        connection.execute("UPDATE arms SET status = 'running' WHERE run_id = 3")
    asked.clear()
    assert execute_file(path, database, reuse=True)[0] == 3 and asked == []


def test_reuse_copies_no_baseline_that_the_policy_calls_stale(once, execute_file, asked):
    path, database = once
    fresh = Policy(name="p", baseline=Standing(fresh="always"))
    _, heard = execute_file(path, database, reuse=True, policy=fresh)
    assert asked.count("bf16") == 2 * EACH and asked.count("kv") == 0, "the baseline, and its A/A"
    assert "bf16: the policy wants a fresh baseline, nothing is copied" in heard.notes
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET created_at = '2020-01-01T00:00:00+00:00'")
    asked.clear()
    execute_file(path, database, reuse=True, policy=Policy(name="p", baseline=Standing(max_age_days=30)))
    assert asked.count("bf16") == 2 * EACH and asked.count("kv") == 0


def test_a_baseline_that_was_copied_each_time_grows_old_all_the_same(once, execute_file, asked):
    path, database = once
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for table in ("runs", "samples"):
            connection.execute(f"UPDATE {table} SET created_at = '2020-01-01T00:00:00+00:00'")
    execute_file(path, database, reuse=True)
    assert asked.count("bf16") == EACH, "its A/A alone"
    asked.clear()
    execute_file(path, database, reuse=True, policy=Policy(name="p", baseline=Standing(max_age_days=30)))
    assert asked.count("bf16") == 2 * EACH and asked.count("kv") == 0
