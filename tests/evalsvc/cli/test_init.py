"""What `evalsvc init` writes can be read, run, and is never written over something."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from evalsvc.cli.init import FILES
from evalsvc.jobs.spec import load_jobs
from evalsvc.policy import load_policy
from evalsvc.prepared import prepare


def test_every_file_can_be_read_and_says_what_its_keys_are(evalsvc_json, tmp_path):
    code, document = evalsvc_json("init", tmp_path / "new")
    assert code == 0 and document["written"] == [str(tmp_path / "new" / name) for name in FILES]
    folder = tmp_path / "new"
    prepared = prepare(folder / "experiment.yaml")
    assert prepared.items_by_suite() == {"formats": 16}
    assert load_policy(folder / "policy.yaml").name == "first"
    job = load_jobs(folder / "jobs.yaml").jobs["nightly"]
    assert (folder / job.experiment).is_file() and (folder / job.policy).is_file()
    steps = yaml.safe_load((folder / "ci.yaml").read_text())["jobs"]["gate"]["steps"]
    assert any("--gate policy.yaml" in step.get("run", "") for step in steps)
    assert any('pip install "${EVALSVC}[engine]"' in step.get("run", "") for step in steps), "no index has it by name"
    assert all("#" in (folder / name).read_text() for name in FILES if name.endswith(".yaml"))


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_written_over_and_nothing_half_written(evalsvc, tmp_path, name):
    (tmp_path / name).write_text("mine")
    code, out, err = evalsvc("init", tmp_path)
    assert (code, out) == (2, "") and f"{name}: is there already" in err
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


@pytest.mark.slow
@pytest.mark.model
def test_init_and_run_work_in_an_empty_folder(small_model, tmp_path):
    env = os.environ | {"COLUMNS": "80"}
    command = [sys.executable, "-m", "evalsvc.cli.main"]
    for arguments in (["init"], ["run", "--json"]):
        done = subprocess.run([*command, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["decisions"][0]["verdict"] in ("PASS", "INCONCLUSIVE")
    assert {arm["errors"] for arm in document["arms"]} == {0}
