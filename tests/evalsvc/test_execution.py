"""An experiment from its file to a finished run, over a tiny random model."""

import contextlib
import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any, get_args

import pytest

from evalsvc import execution
from evalsvc.cli.deciding import decide_stored, stored_aa
from evalsvc.errors import EngineError
from evalsvc.limits import Setting
from evalsvc.policy import Policy
from evalsvc.prepared import prepare
from evalsvc.store import queries, writer
from evalsvc.store.session import open_store

ARMS = ["bf16", "fp8-weights", "fp8-kv-decode", "int4-asym", "mixed", "damaged"]
EXPECTED = 12 * 2 + 4 + 14  # sums through both stages, calls, formats


@pytest.fixture
def copied(six_arms, tmp_path) -> tuple[Path, Path]:
    """The finished six-arm run in a folder of its own: experiment file and database."""
    shutil.copytree(six_arms[0].parent, tmp_path / "experiment")
    shutil.copy(six_arms[1], tmp_path / "runs.sqlite")
    return tmp_path / "experiment" / "experiment.yaml", tmp_path / "runs.sqlite"


def records(database: Path) -> tuple[list[Any], list[Any]]:
    with open_store(database, read_only=True) as store:
        runs = queries.runs(store)
        return runs, [arm for run in runs for arm in queries.arms(store, run.id)]


def ids(database: Path, kind: str = "main") -> list[int]:
    return sorted(run.id for run in records(database)[0] if run.kind == kind)


def test_every_arm_and_the_second_baseline_are_answered_whole(six_arms):
    runs, arms = records(six_arms[1])
    assert sorted((run.kind, run.status, run.samples, run.errors) for run in runs) == [
        ("aa", "finished", EXPECTED, 0),
        ("main", "finished", 6 * EXPECTED, 0),
    ]
    assert [arm.name for arm in arms if arm.run_kind == "main"] == ARMS
    assert {(arm.status, arm.proof_status, arm.expected) for arm in arms} == {("finished", "matched", EXPECTED)}
    assert [arm.name for arm in arms if arm.injected] == ["damaged"]


def test_the_proof_is_of_the_arm_that_it_stands_beside(six_arms):
    arms = {arm.address.split(":")[1] + arm.run_kind: arm for arm in records(six_arms[1])[1]}

    def held(name: str, stage: str) -> tuple[Any, Any]:
        proof = arms[name + "main"].proof[stage]
        return proof["weights"]["code_bits"], proof["kv"]["dtype"]

    assert held("bf16", "decode") == (16, "bfloat16")
    assert held("fp8-kv-decode", "prefill") == (16, "bfloat16")
    assert held("fp8-kv-decode", "decode") == (16, "float8_e4m3fn")
    assert held("mixed", "prefill") == (8, "bfloat16")
    assert held("mixed", "decode") == (4, "float8_e4m3fn")
    assert arms["damagedmain"].proof["decode"]["kv"]["k_read_factor"] == 0.25


def test_lm07_how_prompts_begin_is_recorded_with_every_arm(six_arms):
    """The tiny tokenizer knows the token and adds none, so that prompts of plain text begin without it."""
    begun = [arm.proof["beginnings"] for arm in records(six_arms[1])[1]]
    assert begun == [{"tokenizer_adds": False, "prompts": {"0": EXPECTED}}] * 7


def test_lm07_a_doubled_beginning_is_noted(write_experiment, execute_file, tmp_path):
    cases = tmp_path / "experiment" / "own.jsonl"
    cases.parent.mkdir()
    rows = [{"id": str(n), "prompt": "<bos>" * n + "Hi", "max_tokens": 2, "check": {"regex": ".*"}} for n in range(3)]
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = write_experiment(
        tmp_path / "experiment",
        arms={"bf16": {"plan": "w=bf16"}, "fp8": {"plan": "w=fp8"}},
        suites=[{"name": "own", "kind": "prompts", "cases": "own.jsonl"}],
        aa=None,
        probe=None,
    )
    _, heard = execute_file(path, tmp_path / "runs.sqlite")
    assert [note for note in heard.notes if "beginning-of-sequence" in note] == [
        "1 of 3 prompts begin with more than one beginning-of-sequence token"
    ]


def test_a_group_computes_each_prompt_once_and_says_whose_work_it_was(six_arms):
    arms = {arm.name + arm.run_kind: arm.proof for arm in records(six_arms[1])[1]}
    shared = {name: proof["prefill"]["shared_with"] for name, proof in arms.items()}
    assert shared == {
        "bf16main": ["fp8-kv-decode", "damaged"],
        "fp8-kv-decodemain": ["bf16", "damaged"],
        "damagedmain": ["bf16", "fp8-kv-decode"],
        "fp8-weightsmain": ["mixed"],
        "mixedmain": ["fp8-weights"],
        "int4-asymmain": [],
        "bf16aa": [],
    }
    assert all(proof["decode"]["shared_with"] == [] for proof in arms.values())
    computed = {name: proof["prefill"]["tokens_computed"] for name, proof in arms.items()}
    assert computed["bf16main"] == computed["fp8-kv-decodemain"] == computed["damagedmain"]
    assert computed["fp8-weightsmain"] == computed["mixedmain"]
    assert computed["bf16main"] < 1.5 * computed["bf16aa"]
    batches = [arms[name]["batches"]["sha256"] for name in ("bf16main", "fp8-kv-decodemain", "damagedmain")]
    assert all(batches) and arms["bf16aa"]["batches"]["sha256"] not in batches


def test_the_probe_differs_where_the_stage_does_and_nowhere_else(six_arms):
    arms = {(arm.run_kind, arm.name): arm.probe for arm in records(six_arms[1])[1]}
    means = {key: {s: probe[s]["kl_mean"] for s in probe} for key, probe in arms.items() if probe}
    assert ("main", "bf16") not in means  # nothing to compare the baseline with
    assert means["aa", "bf16"] == {"prefill": 0, "decode": 0}
    for name in ("fp8-kv-decode", "damaged"):
        assert means["main", name]["prefill"] == 0 < means["main", name]["decode"]
    for name in ("fp8-weights", "int4-asym", "mixed"):
        assert min(means["main", name].values()) > 0
    assert means["main", "damaged"]["decode"] > 10 * means["main", "fp8-kv-decode"]["decode"]


def test_the_second_baseline_ran_in_other_batches_and_found_no_difference(six_arms):
    with open_store(six_arms[1], read_only=True) as store:
        first, again = queries.arms(store, 1)[0], queries.aa_of(store, 1)
        check = stored_aa(store, 1)
    assert again is not None and again.proof and first.proof and check is not None
    assert again.fingerprint == first.fingerprint
    assert again.proof["batches"]["sha256"] != first.proof["batches"]["sha256"]
    assert again.proof["batches"]["mean_requests"] < first.proof["batches"]["mean_requests"]
    assert (check.lost, check.gained, check.n) == (0, 0, 30)


def test_scores_vary_so_that_a_comparison_could_fail(six_arms):
    with open_store(six_arms[1], read_only=True) as store:
        arms = queries.arms(store, 1)
        pairs = queries.pairs(store, arms[0], arms[-1])
    right = [pair.baseline.value for pair in pairs if pair.baseline]
    assert 0.1 < sum(value or 0 for value in right) / len(right) < 0.9
    assert any(pair.baseline.value != pair.candidate.value for pair in pairs if pair.baseline and pair.candidate)


def test_what_a_history_names_when_it_changes_is_noted_of_every_arm(six_arms):
    import torch

    _, arms = records(six_arms[1])
    for arm in arms:
        details = arm.details
        assert details["torch"] == torch.__version__ and "driver" in details and "template" in details
        assert set(get_args(Setting)) | {"note"} == details.keys(), "what a policy's `baseline: {same: ...}` may name"
        assert details["suites"].keys() == {"tasks", "tools", "formats"}
        assert all(len(held["items"]) == 64 and held["scoring"] for held in details["suites"].values())


def test_a_finished_run_computes_nothing(copied, execute_file, contents):
    path, database = copied
    before = database.read_bytes(), contents(database)
    run_id, heard = execute_file(path, database)
    assert run_id == 1 and heard.labels == []
    assert contents(database) == before[1] and len(records(database)[0]) == 2


def test_new_starts_another_run_of_the_same_arms(tmp_path, write_experiment, execute_file):
    path, database = write_two(write_experiment, tmp_path), tmp_path / "runs.sqlite"
    assert execute_file(path, database)[0] == 1
    assert execute_file(path, database, new=True)[0] == 2
    _, arms = records(database)
    assert len({arm.fingerprint for arm in arms}) == 2 and len(arms) == 4
    assert execute_file(path, database)[0] == 2  # the latest is the one that is shown again


def write_two(write_experiment, folder: Path, **keys: Any) -> Path:
    """Two arms, one suite, no probe and no A/A."""
    arms = {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=bf16 > kv=fp8:token-head"}}
    suites = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl", "limit": 3}]
    return write_experiment(folder / "experiment", **{"arms": arms, "suites": suites, "aa": None, "probe": None} | keys)


THREE = {
    "bf16": {"plan": "w=bf16"},
    "kv": {"plan": "kv=bf16 > kv=fp8:token-head"},
    "weights": {"plan": "w=bf16 > w=int4:g32:sym"},
}


@pytest.fixture
def grouped(write_experiment, execute_file, tmp_path) -> tuple[Path, Path]:
    """Experiment file and database of a finished run of three arms that share their prefill stage."""
    suites = [
        {"name": "tasks", "kind": "lmeval", "tasks": ["sums/one.yaml"]},
        {"name": "formats", "kind": "formats", "cases": "formats.jsonl", "limit": 3},
    ]
    path = write_two(write_experiment, tmp_path, arms=THREE, suites=suites, probe="probe.txt")
    execute_file(path, tmp_path / "grouped.sqlite")
    return path, tmp_path / "grouped.sqlite"


def test_a_group_says_what_each_arm_says_alone(grouped, execute_file, contents, tmp_path, monkeypatch):
    """Log-likelihoods too, to the last bit."""
    path, database = grouped
    monkeypatch.setattr(execution, "_groups", lambda facts: [(fact.name,) for fact in facts])
    execute_file(path, tmp_path / "alone.sqlite")
    assert contents(database) == contents(tmp_path / "alone.sqlite")
    together, alone = (
        [arm.proof["prefill"] for arm in records(found)[1] if arm.proof]
        for found in (database, tmp_path / "alone.sqlite")
    )
    assert [proof["shared_with"] for proof in alone] == [[]] * 3
    assert together[0]["tokens_computed"] < 0.5 * sum(proof["tokens_computed"] for proof in alone)


def test_arms_of_a_group_go_on_from_where_each_stopped(grouped, execute_file, contents):
    path, database = grouped
    whole = contents(database)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        _, second, third = (row[0] for row in connection.execute("SELECT id FROM arms ORDER BY id").fetchall())
        gone = f"SELECT id FROM samples WHERE arm_id = {third} OR (arm_id = {second} AND id % 3 = 0)"
        for parts in ("scores", "turns"):  # ids are given again, and a part that stayed would be another sample's
            connection.execute(f"DELETE FROM {parts} WHERE sample_id IN ({gone})")
        connection.execute(f"DELETE FROM samples WHERE id IN ({gone})")
        unproven = "status = 'running', proof = NULL, proof_status = NULL, probe = NULL"
        connection.execute(f"UPDATE arms SET {unproven} WHERE id IN ({second}, {third})")
        connection.execute("UPDATE runs SET status = 'running'")
        connection.commit()
        left = connection.execute(f"SELECT count(*) FROM samples WHERE arm_id = {second}").fetchone()[0]
    assert 0 < left < 18
    run_id, heard = execute_file(path, database)
    assert run_id == 1 and heard.labels == ["kv", "weights"]
    assert f"kv: {18 - left} samples" in " ".join(heard.notes) and "weights: 18 samples" in " ".join(heard.notes)
    assert contents(database) == whole
    arms = {arm.name: arm for arm in records(database)[1]}
    assert arms["kv"].proof["prefill"]["shared_with"] == ["weights"]


def test_arms_are_told_together_where_they_were_answered_together(tmp_path, write_experiment, execute_file):
    """A fault or other scales in prefill make it another stage, whatever its format."""
    kv = "kv=fp8:token-head > kv=bf16"
    damaged = {"plan": kv, "inject": {"prefill_k_scale": 0.5}}
    arms = {"bf16": {"plan": "w=bf16"}, "p": {"plan": kv}, "d": {"plan": "w=bf16 > w=fp8"}, "damaged": damaged}
    path = write_two(write_experiment, tmp_path, arms=arms)
    _, heard = execute_file(path, tmp_path / "runs.sqlite")
    told = [re.sub(r" in [0-9.]+ s| \(.*", "", note) for note in heard.notes[1:]]
    assert told == [
        "bf16: 6 samples together with d",
        "d: 6 samples together with bf16",
        "p: 6 samples",
        "damaged: 6 samples",
    ]


def edit_case(path: Path) -> None:
    cases = path.parent / "formats.jsonl"
    cases.write_text(cases.read_text().replace("Write 0:", "Write nought:"))


def edit_check(path: Path) -> None:
    cases = path.parent / "formats.jsonl"
    cases.write_text(cases.read_text().replace("[^e-t]*", "[^e-u]*"))


def replace_in(old: str, new: str):
    def edit(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("edit", "same_arms"),
    [
        (edit_case, True),
        (edit_check, True),
        (replace_in("limit: 3", "limit: 4"), True),
        (replace_in("kv=fp8:token-head", "kv=fp8:uncalibrated"), False),
        (replace_in("kv_tokens: 2048", "kv_tokens: 1024"), True),
    ],
    ids=["a prompt", "what is right", "how many items", "a plan", "the pool"],
)
def test_an_edit_that_could_change_an_answer_starts_another_run(
    tmp_path, write_experiment, execute_file, edit, same_arms
):
    path, database = write_two(write_experiment, tmp_path), tmp_path / "runs.sqlite"
    assert execute_file(path, database)[0] == 1
    edit(path)
    run_id, heard = execute_file(path, database)
    assert run_id == 2 and "run 2 begins: run 1 had other items, plans or settings" in heard.notes
    _, arms = records(database)
    ours, theirs = ({a.name: a.fingerprint for a in arms if a.run_id == run} for run in (1, 2))
    assert (ours == theirs) == same_arms


def test_an_edited_calibration_or_probe_starts_another_run(copied):
    path, _ = copied
    before = prepare(path)
    (path.parent / "probe.txt").write_text("Another text.")
    assert prepare(path).hash != before.hash


@pytest.mark.parametrize(
    ("edit", "run_id"),
    [
        (replace_in("batch: 6", "batch: 3\nworkers: 2"), 1),
        (replace_in("plan: w=bf16\n", "plan: w=bf16\n    note: to be known\n"), 1),
        (replace_in("plan: w=bf16\n", "plan: kv=bf16,w=bf16\n"), 2),
    ],
    ids=["batches and processes", "a note", "the same plan in other words"],
)
def test_what_changes_no_answer_is_the_same_arm(tmp_path, write_experiment, execute_file, edit, run_id):
    path, database = write_two(write_experiment, tmp_path), tmp_path / "runs.sqlite"
    execute_file(path, database)
    edit(path)
    assert execute_file(path, database)[0] == run_id
    assert len({arm.fingerprint for arm in records(database)[1]}) == 2


def test_an_unfinished_run_goes_on_where_it_stopped(tmp_path, write_experiment, execute_file, contents, monkeypatch):
    path = write_two(write_experiment, tmp_path, aa={"batch": 2}, probe="probe.txt")
    whole = tmp_path / "whole.sqlite"
    execute_file(path, whole)

    finish = writer.finish_arm
    stopped = tmp_path / "stopped.sqlite"

    def stop_at_the_second(store, arm_id, proof, status):
        if len(names) == 1:
            raise KeyboardInterrupt
        names.append(arm_id)
        finish(store, arm_id, proof, status)

    names: list[int] = []
    monkeypatch.setattr(writer, "finish_arm", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        execute_file(path, stopped)
    monkeypatch.setattr(writer, "finish_arm", finish)
    assert {run.status for run in records(stopped)[0]} == {"interrupted"}

    run_id, heard = execute_file(path, stopped)
    assert run_id == 1 and heard.notes[0].startswith("run 1 goes on")
    assert heard.labels == ["kv", "bf16 again (A/A)"]
    assert contents(stopped) == contents(whole)


def test_an_arm_killed_after_its_last_sample_proves_what_it_runs(tmp_path, write_experiment, execute_file):
    path, database = write_two(write_experiment, tmp_path), tmp_path / "runs.sqlite"
    execute_file(path, database)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE arms SET status = 'running', proof = NULL, proof_status = NULL")
        connection.execute("UPDATE runs SET status = 'running'")
        connection.commit()
    run_id, heard = execute_file(path, database)
    assert run_id == 1 and "kv: 0 samples" in " ".join(heard.notes)
    for arm in records(database)[1]:
        assert arm.proof_status == "matched"
        assert all(arm.proof[stage]["kernels"] for stage in ("prefill", "decode"))


def test_a_format_that_is_held_and_never_read_is_a_mismatch(tmp_path, write_experiment, execute_file, monkeypatch):
    """Pages of the right type and size beside which attention reads what came in: only the answers can tell."""
    from evalsvc.engine import attention
    from evalsvc.engine.kv import pool

    came_in: dict[int, Any] = {}

    def write(pages, scale, slots, x):
        came_in.setdefault(pages.data_ptr(), x.new_zeros(pages.shape))[slots] = x
        kv_write(pages, scale, slots, x)

    def read(q, k, v, k_scale, v_scale, *rest):
        return paged(q, came_in[k.data_ptr()], came_in[v.data_ptr()], None, None, *rest)

    kv_write, paged = pool.kv_write, attention.paged_attention
    monkeypatch.setattr(pool, "kv_write", write)
    monkeypatch.setattr(attention, "paged_attention", read)
    path = write_two(write_experiment, tmp_path, probe="probe.txt")
    execute_file(path, tmp_path / "runs.sqlite")
    baseline, candidate = records(tmp_path / "runs.sqlite")[1]
    assert (baseline.proof_status, candidate.proof_status) == ("matched", "mismatched")
    (found,) = candidate.proof["mismatches"]
    assert found == "decode: kv=fp8:token-head changes no bit of the baseline's distributions"


def test_a_failed_request_is_said_and_makes_the_verdict_invalid(tmp_path, write_experiment, execute_file):
    path = write_two(write_experiment, tmp_path, kv_tokens=32)
    _, heard = execute_file(path, tmp_path / "runs.sqlite")
    assert any("of them have no score, first formats/f" in note and "32" in note for note in heard.notes)
    with open_store(tmp_path / "runs.sqlite", read_only=True) as store:
        baseline, candidate = queries.arms(store, 1)
        decision = decide_stored(store, baseline, candidate, Policy(name="p"))
    assert decision.verdict == "INVALID"

    more = write_two(write_experiment, tmp_path)  # the remedy that the message names
    run_id, heard = execute_file(more, tmp_path / "runs.sqlite")
    assert run_id == 2 and not any("no score" in note for note in heard.notes)


def test_a_changed_model_starts_another_run(tmp_path, write_experiment, execute_file, tiny_model):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    path, database = write_two(write_experiment, tmp_path, model="../model"), tmp_path / "runs.sqlite"
    assert execute_file(path, database)[0] == 1
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    run_id, heard = execute_file(path, database)
    assert run_id == 2 and "run 2 begins: run 1 had another model or engine" in heard.notes


def test_a_candidate_without_its_calibration_stops_before_anything_is_answered(
    tmp_path, write_experiment, execute_file
):
    arms = {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=fp8:tensor:calibrated", "calibration": "calibration.jsonl"}}
    path = write_two(write_experiment, tmp_path, arms=arms)
    (path.parent / "calibration.jsonl").write_text('{"prompt": "fine"}\n{"prompt": 3}\n')
    with pytest.raises(Exception, match=r"calibration\.jsonl:2: expected"):
        execute_file(path, tmp_path / "runs.sqlite")
    assert records(tmp_path / "runs.sqlite")[0] == []


def test_a_model_that_is_none_stops_before_a_run_is_opened(tmp_path, write_experiment, execute_file):
    (tmp_path / "model").mkdir()
    path = write_two(write_experiment, tmp_path, model="../model")
    with pytest.raises(EngineError, match=r"config\.json is missing"):
        execute_file(path, tmp_path / "runs.sqlite")
    assert ids(tmp_path / "runs.sqlite") == []
