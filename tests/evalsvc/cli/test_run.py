"""`evalsvc run` as a person and as a script meet it: what it prints, what it refuses, what it leaves behind."""

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from evalsvc.store.session import open_store

TWO = {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=bf16 > kv=fp8:token-head"}}
CALIBRATED = {"plan": "kv=bf16 > kv=fp8:tensor:calibrated", "calibration": "calibration.jsonl"}
FORMATS = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl", "limit": 3}]


@pytest.fixture
def write(write_experiment, tmp_path):
    """Two arms and three format cases, without probe and A/A; keys replace."""

    def call(folder=None, **keys):
        small = {"arms": TWO, "suites": FORMATS, "probe": None, "aa": None}
        return write_experiment(folder or tmp_path / "an experiment", **small | keys)

    return call


@pytest.fixture
def refused(evalsvc, tmp_path):
    """Runs a command that is refused; returns the sentence, of which stderr's last line consists."""

    def call(*arguments, code=2):
        found, out, err = evalsvc("run", *arguments, "--db", tmp_path / "r.sqlite")
        said = err.splitlines()[-1]
        assert (found, out) == (code, "") and said.startswith("error: ") and "Traceback" not in err
        assert "unexpected" not in said
        return said

    return call


@pytest.fixture
def finished(six_arms, tmp_path):
    """A copy of the finished six-arm run: experiment file and database."""
    shutil.copytree(six_arms[0].parent, tmp_path / "finished")
    shutil.copy(six_arms[1], tmp_path / "six.sqlite")
    return tmp_path / "finished" / "experiment.yaml", str(tmp_path / "six.sqlite")


def test_the_document_is_the_whole_of_stdout(evalsvc, finished):
    path, db = finished
    code, out, err = evalsvc("run", path, "--db", db, "--json")
    document = json.loads(out)
    assert code == 0 and document["schema"] == "evalsvc.run/1" and document["run"] == 1
    candidates = [d["candidate"]["name"] for d in document["decisions"]]
    assert candidates == ["fp8-weights", "fp8-kv-decode", "int4-asym", "mixed", "damaged"]
    assert [arm["address"] for arm in document["arms"]] == ["1:bf16", *(f"1:{n}" for n in candidates), "2:bf16"]
    assert [arm["aa"] for arm in document["arms"]] == [False] * 6 + [True]
    assert document["arms"][5]["injected"] == {"decode_k_scale": 0.25}
    quiet = {"address": "2:bf16", "of": "1:bf16", "n": 30, "lost": 0, "gained": 0, "p": 1.0, "p_gain": 1.0}
    assert document["aa"] == {**quiet, "left_out": [], "discordance_points": 0.0, "failed": False}
    for arm in document["arms"]:
        assert arm["proof"] == "matched" and arm["errors"] == 0 and arm["seconds"] > 0
        for stage in arm["stages"].values():
            assert stage["weight_format_bytes"] > 0 and stage["kv_bytes_per_token"] > 0
    together = ["bf16", "fp8-kv-decode", "damaged"]
    arms = {arm["address"]: arm for arm in document["arms"]}
    for name in together:
        held = arms[f"1:{name}"]["stages"]
        assert held["prefill"]["shared_with"] == [other for other in together if other != name]
        assert arms[f"1:{name}"]["seconds"] == held["decode"]["seconds"]  # its own alone
    for held in (arms["1:int4-asym"], arms["2:bf16"]):
        assert held["seconds"] == sum(stage["seconds"] for stage in held["stages"].values())
    assert "run 1 is finished, nothing is computed; --new starts another" in err and "smallest provable margin" in err


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_tables_fit_and_show_every_arm(evalsvc, finished, monkeypatch, columns):
    path, db = finished
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = evalsvc("run", path, "--db", db)
    assert code == 0 and max(map(len, out.splitlines())) <= int(columns)
    for words in (
        "fp8-kv-decode",
        "damaged [injected]",
        "(A/A)",
        "another order and in other batches",
        "right in the baseline 1:bf16: ",
        "* computed once, for all these arms together: prefill of bf16, damaged, fp8-kv-decode; prefill of "
        "fp8-weights, mixed A/A: ",
    ):
        assert words in " ".join(out.split())
    marked = [line for line in out.splitlines() if line.rstrip().endswith("*")]
    assert len(marked) == 5 and all(" prefill " in line and line.count("*") == 2 for line in marked)


def test_with_a_gate_the_exit_code_is_the_verdicts(evalsvc, finished, tmp_path):
    path, db = finished
    (tmp_path / "p.yaml").write_text("name: p\nmargin_points: 5\n")
    code, out, _ = evalsvc("run", path, "--db", db, "--gate", tmp_path / "p.yaml", "--json")
    assert code == json.loads(out)["exit_code"] == 3
    (tmp_path / "p.yaml").write_text("name: p\nmargin_points: 80\n")  # more than the baseline has to lose
    assert evalsvc("run", path, "--db", db, "--gate", tmp_path / "p.yaml")[0] == 4


def test_decode_formats_change_nothing_that_is_scored_through_prefill(evalsvc_json, finished):
    path, db = finished
    _, document = evalsvc_json("run", path, "--db", db)
    with sqlite3.connect(db) as connection:
        answers = {
            (name, item, through): answer
            for name, item, through, answer in connection.execute(
                "SELECT a.name, i.item_id, s.through, s.answer FROM samples s JOIN arms a ON a.id = s.arm_id"
                " JOIN items i ON i.id = s.item_pk WHERE i.suite = 'tasks' AND s.run_id = 1"
            )
        }
    base = {key[1:]: answer for key, answer in answers.items() if key[0] == "bf16"}
    for arm, changes in {"fp8-kv-decode": False, "damaged": False, "fp8-weights": True}.items():
        same = [answers[(arm, *key)] == answer for key, answer in base.items() if key[1] == "prefill"]
        assert len(same) == 12 and all(same) != changes, arm
        assert not any(answers[(arm, *key)] == answer for key, answer in base.items() if key[1] == "decode"), arm

    for decision in document["decisions"]:
        rows = {row["through"]: row for row in decision["rows"] if row["level"] == "family" and row["suite"] == "tasks"}
        blind = decision["candidate"]["name"] in ("fp8-kv-decode", "damaged")
        assert (rows["prefill"]["blind"], rows["prefill"]["counted"]) == (blind, False)
        assert (rows["decode"]["blind"], rows["decode"]["counted"]) == (False, True)
        assert not blind or (rows["prefill"]["factors_met"] == [] and rows["decode"]["factors_met"] == ["decode.kv"])
        pooled = decision["rows"][0]
        assert pooled["n"] == 30  # 12 sums once, 4 calls, 14 formats


def edited(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_an_empty_key_is_no_key(write, refused):
    """A pipeline's variable that was never set would find the run of another night, finished."""
    assert "--key is empty" in refused(write(), "--key", "")


@pytest.mark.parametrize("option", [["--new"], ["--key", "x"]])
def test_copying_contradicts_what_computes(write, refused, option):
    assert f"--reuse and {option[0]} contradict each other" in refused(write(), "--reuse", *option)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kv=fp8:token-head", "kv=fp7", "fp7"),
        ("plan: w=bf16", "plan: w=int4:g48", "48"),
        ("baseline: bf16", "baseline: nobody", "'baseline': 'nobody' is none of the arms, which are bf16, kv"),
        ("seed: 3", "sead: 3", "unknown key 'sead'; did you mean 'seed'?"),
        ("kind: formats", "kind: chess", "chess"),
        ("cases: formats.jsonl", "cases: nowhere.jsonl", "nowhere.jsonl"),
        ("probe: null", "probe: nowhere.txt", "probe"),
        ("model: ", "model: nowhere", "no such directory"),
        ("probe: null", "policy: nowhere.yaml", "nowhere.yaml"),
        ("seed: 3", "seed: !!python/object/apply:os.getcwd []", "is no YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(write, refused, tmp_path, old, new, says):
    said = refused(edited(write(), old, new))
    assert says in said
    assert not (tmp_path / "r.sqlite").exists() or rows(tmp_path / "r.sqlite", "samples") == 0


def rows(database, table) -> int:
    with sqlite3.connect(database) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_other_bytes_are_refused(write, refused):
    path = write()
    path.write_bytes(path.read_bytes() + b"# caf\xe9\n")
    assert "is not UTF-8 text" in refused(path)


def test_a_file_that_is_not_there(refused, tmp_path):
    assert "nowhere.yaml" in refused(tmp_path / "nowhere.yaml")
    assert "cannot be read" in refused(tmp_path)


@pytest.mark.slow
def test_an_unknown_task_is_named(write, refused):
    path = write(suites=[{"name": "tasks", "kind": "lmeval", "tasks": ["evalsvc_no_such_task"]}])
    assert "evalsvc_no_such_task" in refused(path)


@pytest.mark.parametrize(
    ("calibration", "arm", "says"),
    [
        (None, CALIBRATED, "does not exist"),
        ('{"prompt": "fine"}\n{"prompt": \n', CALIBRATED, "calibration.jsonl:2: expected"),
        ("\n", CALIBRATED, "holds no prompt"),
        ('{"prompt": "fine"}\n', CALIBRATED | {"plan": "kv=fp8"}, "remove the arm's `calibration`"),
        ('{"prompt": "fine"}\n', {"plan": CALIBRATED["plan"]}, "give the arm `calibration: FILE.jsonl`"),
        ('{"prompt": "fine"}\n', {"plan": "w=fp8", "inject": {"decode_k_scale": 2}}, "needs a KV format with a scale"),
        ('{"prompt": "fine"}\n', {"plan": "kv=fp8", "inject": {"decode_q": 2}}, "unknown fault 'decode_q'"),
    ],
)
def test_calibrations_and_faults(write, refused, calibration, arm, says):
    path = write(arms={"bf16": TWO["bf16"], "kv": arm})
    (path.parent / "calibration.jsonl").unlink()
    if calibration is not None:
        (path.parent / "calibration.jsonl").write_text(calibration)
    assert says in refused(path)


@pytest.mark.parametrize(
    ("scales", "arm", "says"),
    [
        (None, {"scales": "scales.json"}, "scales.json does not exist"),
        ('{"k": [1], "v": 1}', {"scales": "scales.json"}, "'k' must hold one number, for each of"),
        (None, {"scales": "."}, "config.json is missing; is this a model directory"),
        ("{}", {}, "give the arm `scales: FILE.json`"),
        ("{}", {"plan": "kv=fp8", "scales": "scales.json"}, "remove the arm's `scales`"),
    ],
)
def test_given_scales(write, refused, scales, arm, says):
    path = write(arms={"bf16": TWO["bf16"], "kv": {"plan": "kv=bf16 > kv=fp8:given"} | arm})
    if scales is not None:
        (path.parent / "scales.json").write_text(scales)
    assert says in refused(path)


def test_a_plan_that_does_not_fit_the_model_is_refused_before_anything_is_answered(write, refused, tmp_path):
    said = refused(write(arms=TWO | {"int4": {"plan": "w=int4:g128"}}))
    assert said.startswith("error: arm int4: int4:g128 does not divide the ") and "groups that do: g32" in said
    assert rows(tmp_path / "r.sqlite", "runs") == 0


def test_as_stored_of_a_model_that_is_not_quantized_is_refused(write, refused):
    assert "is not quantized, so that w=stored is w=bf16" in refused(
        write(arms={"bf16": TWO["bf16"], "published": {"plan": "w=stored"}})
    )


def test_a_candidate_that_is_the_baseline_in_other_words_is_refused(write, refused):
    arms = {"bf16": TWO["bf16"], "same": {"plan": "kv=bf16 > kv=bf16,w=bf16"}}
    assert "arms bf16 and same are the same (w=bf16,kv=bf16); remove or change one" in refused(write(arms=arms))


def test_an_altered_model_file_is_refused(write, refused, tiny_model, tmp_path):
    from evalsvc.engine.checkpoint.directory import ModelDirectory

    shutil.copytree(tiny_model, tmp_path / "model")
    ModelDirectory(tmp_path / "model").write_manifest({"from": "a test"})
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert "model.safetensors is not the file that was converted" in refused(write(model=str(tmp_path / "model")))


def test_a_truncated_model_file_is_refused(write, refused, tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    os.truncate(tmp_path / "model" / "model.safetensors", 20_000)
    assert "model.safetensors" in refused(write(model=str(tmp_path / "model")))


@pytest.mark.parametrize("kind", ["folder", "text", "foreign", "newer"])
def test_a_database_that_is_none_of_ours_is_left_as_it_was(write, refused, tmp_path, kind):
    database = tmp_path / "r.sqlite"
    if kind == "folder":
        database.mkdir()
    elif kind == "text":
        database.write_text("a diary, not a database\n" * 10)
    else:
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE diary (day TEXT)")
            if kind == "newer":
                connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)")
                connection.execute("INSERT INTO meta VALUES ('schema_version', '9999')")
        connection.close()
    before = None if kind == "folder" else database.read_bytes()
    said = refused(write())
    words = {"folder": "folder", "text": "not a SQLite database", "foreign": "something else", "newer": "9999"}
    assert words[kind] in said
    assert before is None or database.read_bytes() == before


def test_a_second_run_at_once_is_refused(write, refused, tmp_path):
    with (tmp_path / "r.sqlite.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another run is writing" in refused(write())


def test_a_database_that_another_program_holds(write, refused, evalsvc, tmp_path, monkeypatch):
    path, database = write(), tmp_path / "r.sqlite"
    assert evalsvc("run", path, "--db", database)[0] == 0
    monkeypatch.setitem(open_store.__kwdefaults__, "timeout_s", 0.1)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert "is locked by another program" in refused(path, "--new")
    other.close()
    assert evalsvc("run", path, "--new", "--db", database)[0] == 0
    assert rows(database, "samples") == 2 * 12


def test_a_folder_that_cannot_be_made_is_refused(evalsvc, write):
    code, _, err = evalsvc("run", write(), "--db", "/proc/results/r.sqlite")
    assert code == 2 and err.startswith("error: /proc/results/r.sqlite: its folder: ") and err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_refused(write, refused, tmp_path):
    path = write()
    tmp_path.chmod(0o500)
    try:
        assert "r.sqlite" in refused(path)
    finally:
        tmp_path.chmod(0o700)


def test_an_arm_without_samples_can_be_neither_compared_nor_gated(evalsvc, write, tmp_path):
    db, path = tmp_path / "r.sqlite", write()
    evalsvc("run", path, "--db", db)
    with sqlite3.connect(db) as connection:
        connection.execute("DELETE FROM scores WHERE sample_id IN (SELECT id FROM samples WHERE arm_id = 2)")
        connection.execute("DELETE FROM samples WHERE arm_id = 2")
    connection.close()
    (tmp_path / "p.yaml").write_text("name: p\n")
    assert evalsvc("compare", "1:bf16", "1:kv", "--db", db)[0] == 4
    gate = ("gate", "--policy", tmp_path / "p.yaml", "--db", db, "--baseline", "1:bf16", "--candidate")
    assert evalsvc(*gate, "1:kv")[0] == 4
    code, _, err = evalsvc(*gate, "1:bf16")
    assert code == 2 and err.startswith("error: ")


def command(*arguments, cwd, env=None, limit_blocks=None):
    call = [sys.executable, "-m", "evalsvc.cli.main", *map(str, arguments)]
    if limit_blocks is not None:  # a full disk: no file may grow beyond so many KiB
        call = ["bash", "-c", f'ulimit -f {limit_blocks}; exec "$@"', "run", *call]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(call, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_from_another_folder_with_spaces_into_a_folder_that_is_not_there(write, tmp_path):
    path = write(tmp_path / "an experiment", aa={"batch": 2}, workers=2)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    env = {"EVALSVC_DB": "new folder/runs.sqlite"}
    done = command("run", "../an experiment/experiment.yaml", "--json", cwd=elsewhere, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == 1
    assert rows(elsewhere / "new folder" / "runs.sqlite", "samples") == 3 * 6  # three of each family
    assert {file.name for file in path.parent.iterdir()} == {
        *("calibration.jsonl", "experiment.yaml", "formats.jsonl", "formats.prefixes.jsonl"),
        *("probe.txt", "sums", "tools.jsonl"),
    }
    lines = done.stderr.splitlines()  # piped: lines, no bars
    assert "\x1b" not in done.stderr and len([line for line in lines if " samples in " in line]) == 3


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_what_was_committed_stays(write, tmp_path, contents):
    plans = ("w=bf16", "w=fp8", "w=fp32", "kv=fp8", "w=int4:g32", "w=int4:g32:asym")
    arms = {f"arm{n}": {"plan": plan} for n, plan in enumerate(plans)}
    suites = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl"}]
    path = write(arms=arms, baseline="arm0", suites=suites)
    open_store(tmp_path / "empty.sqlite", create=True).close()
    tables = (tmp_path / "empty.sqlite").stat().st_size // 1024
    full = command("run", path, "--db", tmp_path / "r.sqlite", cwd=tmp_path, limit_blocks=tables + 28)
    assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
    said = full.stderr.splitlines()[-1]
    assert said.startswith("error: ") and "space" in said
    assert 0 < rows(tmp_path / "r.sqlite", "samples") < 84
    done = command("run", path, "--db", tmp_path / "r.sqlite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert command("run", path, "--db", tmp_path / "whole.sqlite", cwd=tmp_path).returncode == 0
    assert contents(tmp_path / "r.sqlite") == contents(tmp_path / "whole.sqlite")
