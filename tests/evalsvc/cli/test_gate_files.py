"""`evalsvc gate` as a pipeline calls it: files beside the table, exit codes of the installed command."""

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from evalsvc.decision import EXIT_CODES
from evalsvc.store import writer
from evalsvc.store.records import NewScore
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand

COMMAND = Path(sys.executable).with_name("evalsvc")


def arguments(policy, db, candidate, *more):
    return ["gate", "--policy", policy, "--baseline", "base", "--candidate", candidate, "--db", db, *map(str, more)]


@pytest.mark.parametrize(("candidate", "code", "word"), [("good", 0, "PASS"), ("bad", 1, "REGRESSED")])
def test_all_files_say_what_the_exit_code_says(evalsvc, policy, db, tmp_path, candidate, code, word):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "xml", "md")}
    asked = ["--json-file", files["json"], "--junit", files["xml"], "--markdown", files["md"]]
    found, out, _ = evalsvc(*arguments(policy, db, candidate, *asked))
    assert found == code and word in out
    document = json.loads(files["json"].read_text())
    assert (document["exit_code"], document["decisions"][0]["verdict"]) == (code, word)
    root = ElementTree.fromstring(files["xml"].read_text())
    assert (int(root.get("failures", "0")) > 0) == (code == 1)
    assert f"exit code {code}" in files["md"].read_text()


@pytest.mark.parametrize("place", ["missing/out.xml", "."])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_decided(evalsvc, policy, db, tmp_path, place):
    with open_store(db) as store:
        before = len(writer.done_keys(store, 1))
    code, out, err = evalsvc(*arguments(policy, db, "good", "--junit", tmp_path / place))
    assert (code, out) == (2, "") and "no file can be written there" in err
    with open_store(db, read_only=True) as store:
        assert len(writer.done_keys(store, 1)) == before


def test_the_policy_and_what_was_written_already_are_not_written_over(evalsvc, policy, db, tmp_path):
    before, out = Path(policy).read_text(), tmp_path / "out.txt"
    code, _, err = evalsvc(*arguments(policy, db, "good", "--json-file", policy))
    assert code == 2 and f"{policy}: is what is read, and would be lost" in err
    assert Path(policy).read_text() == before
    code, _, err = evalsvc(*arguments(policy, db, "good", "--json-file", out, "--junit", out))
    assert code == 2 and "is what is written already, and would be lost" in err and not out.exists()
    assert evalsvc(*arguments(policy, db, "good", "--json-file", "/dev/null", "--junit", "/dev/null"))[0] == 0


def test_an_accepted_inconclusive_exits_0(evalsvc, db, tmp_path, add_arm):
    with open_store(db) as store:
        add_arm(store, 1, "weak", lost=2, decode={"kv": "fp8"})
    for inconclusive, code in (("block", 3), ("accept", 0)):
        path = tmp_path / f"{inconclusive}.yaml"
        path.write_text(f"name: p\nmargin_points: 3\nguard_points: 15\ninconclusive: {inconclusive}\n")
        found, out, _ = evalsvc(*arguments(path, db, "weak"))
        assert found == code and "INCONCLUSIVE" in out


@pytest.mark.parametrize(("candidate", "code"), [("good", 0), ("bad", 1), ("nobody", 2), ("weak", 3), ("unproven", 4)])
def test_exit_codes_of_the_installed_command(db, tmp_path, add_arm, candidate, code):
    with open_store(db) as store:
        add_arm(store, 1, "weak", lost=2, decode={"kv": "fp8"})
        add_arm(store, 1, "unproven", decode={"kv": "fp8"}, finish=False)
    path = tmp_path / "policy.yaml"
    path.write_text("name: p\nmargin_points: 3\nguard_points: 15\n")
    done = subprocess.run([COMMAND, *arguments(path, db, candidate)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


SAYS = re.compile(r"lost ([\d,]+), gained ([\d,]+) of ([\d,]+); .*?margin ([\d.]+)")
TABLE = re.compile(
    r"^  (\S+) +(PASS|REGRESSED|INCONCLUSIVE|INVALID)[a-z :]*? +(\d+) +(\d+) +(\d+) .* ([\d.]+)(?:  |$)", re.M
)


@pytest.mark.parametrize(
    ("candidate", "word"),
    [("good", "PASS"), ("bad", "REGRESSED"), ("weak", "INCONCLUSIVE"), ("unproven", "INVALID")],
)
def test_table_json_junit_markdown_and_exit_code_agree(evalsvc, db, tmp_path, add_arm, monkeypatch, candidate, word):
    """Word, b, c, n and margin of every row that carries a verdict, out of four printed forms; the code beside them."""
    with open_store(db) as store:
        add_arm(store, 1, "weak", lost=2, decode={"kv": "fp8"})
        add_arm(store, 1, "unproven", decode={"kv": "fp8"}, finish=False)
    monkeypatch.setenv("COLUMNS", "160")
    path, files = tmp_path / "policy.yaml", {kind: tmp_path / f"out.{kind}" for kind in ("json", "xml", "md")}
    path.write_text("name: p\nmargin_points: 3\nguard_points: 15\n")
    asked = ["--json-file", files["json"], "--junit", files["xml"], "--markdown", files["md"]]
    code, out, _ = evalsvc(*arguments(path, db, candidate, *asked))

    document = json.loads(files["json"].read_text())
    (decision,) = document["decisions"]
    schema = json.loads(resources.files("evalsvc").joinpath("schemas/decision.json").read_text())
    Draft202012Validator(schema).validate(decision)
    rows = {
        row["suite"] or "pooled": (row["verdict"], row["b"], row["c"], row["n"], row["margin_points"])
        for row in decision["rows"]
        if row["verdict"] is not None
    }
    assert set(rows) == {"pooled", "tasks", "tools"}
    assert decision["verdict"] == word and code == decision["exit_code"] == document["exit_code"] == EXIT_CODES[word]

    table = {m[1]: (m[2], int(m[3]), int(m[4]), int(m[5]), float(m[6])) for m in TABLE.finditer(out)}
    assert table == rows and f"1:{candidate} {word}" in out

    root = ElementTree.fromstring(files["xml"].read_text())
    junit = {}
    for case in root.iter("testcase"):
        said, name = case.findtext("system-out") or "", case.get("name", "")
        if name == "release":
            assert said.startswith(word) and (case.find("failure") is None and case.find("error") is None) == (
                code == 0
            )
            continue
        found = SAYS.search(said)
        assert found
        key = "pooled" if name == "all suites pooled" else name.removeprefix("suite ")
        junit[key] = (re.split(r"\W", said)[0], *map(int, found.groups()[:3]), float(found[4]))
    assert junit == rows

    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in files["md"].read_text().splitlines()]
    markdown = {
        cells[0].strip("*"): (cells[1].split(" ")[0], *map(int, cells[2:5]), float(cells[8]))
        for cells in lines
        if len(cells) == 9 and cells[2].isdecimal()
    }
    assert markdown == rows and f"exit code {code}" in files["md"].read_text()


def installed(command, **environment):
    done = subprocess.run(
        [COMMAND, *command], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_no_samples_are_4(policy, db):
    with open_store(db) as store:
        run_id = by_hand.open_run(store)
        for name in ("base", "none"):
            by_hand.open_arm(store, run_id, name, stages={"prefill": {}, "decode": {}}, expected=0)
    sides = ["--baseline", f"{run_id}:base", "--candidate", f"{run_id}:none"]
    code, said = installed(["gate", "--policy", policy, *sides, "--db", db])
    assert code == 4 and "INVALID: no samples" in said


def test_an_uncaught_exception_of_the_installed_command_is_2(policy, db, tmp_path):
    """Python runs `sitecustomize` at its start; here it breaks the gate in a way that nothing of ours expects."""
    code = (
        "import evalsvc.gate\ndef broken(*a, **k): raise ZeroDivisionError('odd')\nevalsvc.gate.decide_gate = broken\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    code, said = installed(arguments(policy, db, "good"), PYTHONPATH=str(tmp_path))
    assert code == 2 and "unexpected ZeroDivisionError: odd" in said and "Traceback" not in said


def test_a_corpus_metric_goes_from_stored_parts_to_the_exit_code(tmp_path, evalsvc_json):
    """F1 of 200 documents, right and given class stored with each; the worse arm is wrong of every fourth."""
    path, database = tmp_path / "policy.yaml", str(tmp_path / "runs.sqlite")
    path.write_text(
        "name: p\nmargin_points: 50\nguard_points: 50\nproof: declared\n"
        "margins:\n  - {suite: pairs, metric: f1, margin: 0.1, statistic: f1}\n"
    )
    with open_store(database, create=True) as store:
        run_id = by_hand.open_run(store)
        for name, wrong in (("base", 10), ("same", 10), ("worse", 4)):
            stages = {stage: {"weights": "bf16", "kv": name} for stage in ("prefill", "decode")}
            arm_id = by_hand.open_arm(store, run_id, name, stages=stages, expected=200)
            rows = []
            for number in range(200):
                gold = float(number % 3 == 0)
                given = gold if number % wrong else 1 - gold
                values = {"acc": float(gold == given), "f1.0": gold, "f1.1": given}
                scores = tuple(NewScore(metric=metric, filter="none", value=value) for metric, value in values.items())
                about = {"suite": "pairs", "family": "pairs", "metric": "acc", "request_hash": f"r{number}"}
                rows.append(by_hand.sample(f"i{number}", scores=scores, **about))
            writer.add_samples(store, run_id, arm_id, rows)
            writer.finish_arm(store, arm_id, None, "declared")
        writer.finish_run(store, run_id)
    right = [number % 10 > 0 for number in range(200)]
    tp, fn = (sum(right[n] is kept for n in range(0, 200, 3)) for kept in (True, False))
    fp = right.count(False) - fn
    for candidate, code, word in (("same", 0, "PASS"), ("worse", 1, "REGRESSED")):
        found, document = evalsvc_json(*arguments(path, database, candidate))
        (row,) = (row for row in document["decisions"][0]["rows"] if row["level"] == "metric")
        assert (found, row["verdict"], row["unit"], row["n"]) == (code, word, "f1", 200)
        assert row["in_units"]["baseline_value"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
