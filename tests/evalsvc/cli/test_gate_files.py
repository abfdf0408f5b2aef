"""`evalsvc gate` as a pipeline calls it: files beside the table, exit codes of the installed command."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evalsvc.store import writer
from evalsvc.store.session import open_store

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
