"""A small database: a baseline, a good and a damaged candidate, and the A/A of their run."""

import json
import shutil

import pytest

from evalsvc.cli.main import main
from evalsvc.store import writer
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand
from tests.evalsvc.by_hand import BF16

HOSTILE = "e[red]\x1b[31m"


def sample(suite, number, right):
    return by_hand.sample(
        f"i{number}",
        right,
        suite=suite,
        family=f"{suite}-family",
        request_hash=f"r{number}",
        answer="x",
        prompt_tokens=5,
        answer_tokens=10,
        finish_reason="stop",
        timings={"decode_s": 0.1},
    )


def _add_arm(store, run_id, name, *, lost=0, decode=None, injected=None, fingerprint=None, finish=True):
    arm_id = by_hand.open_arm(
        store,
        run_id,
        name,
        fingerprint=fingerprint or f"fp-{name}",
        plan="w=bf16,kv=bf16",
        stages={"prefill": BF16, "decode": {**BF16, **(decode or {})}},
        injected=injected or {},
        expected=120,
    )
    rows = [sample(suite, i, i >= 15 + lost) for suite in ("tasks", "tools") for i in range(60)]
    writer.add_samples(store, run_id, arm_id, rows)
    if finish:
        writer.save_probe(store, arm_id, {"decode": {"kl_mean": 0.0123, "kl_max": 0.5, "tokens": 64}})
        proof = {
            "prefill": {"kv": {"dtype": "bfloat16"}, "seconds": 12.0, "shared_with": ["one", "two"]},
            "decode": {"kv": {"dtype": "float8_e4m3fn"}, "seconds": 3.5, "shared_with": []},
        }
        writer.finish_arm(store, arm_id, proof, "matched")
    return arm_id


@pytest.fixture
def add_arm():
    """`add_arm(store, run_id, name, lost=0, ...)`: an arm of 120 items with all its samples."""
    return _add_arm


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    path = str(folder / "runs.sqlite")
    with open_store(path, create=True) as store:
        shared = {"experiment": HOSTILE, "experiment_hash": "x", "resolved": {}, "baseline": "base", "seed": 0}
        run_id = writer.open_run(store, **shared)
        _add_arm(store, run_id, "base")
        _add_arm(store, run_id, "good", decode={"kv": "fp8"})
        _add_arm(store, run_id, "bad", lost=30, decode={"kv": "fp8", "fault": "x"}, injected={"decode_k_scale": 0.25})
        writer.finish_run(store, run_id)
        again = writer.open_run(store, **shared, kind="aa", linked_run_id=run_id)
        _add_arm(store, again, "base", fingerprint="fp-base")
        writer.finish_run(store, again)
    return folder


@pytest.fixture
def db(built, tmp_path):
    shutil.copytree(built, tmp_path / "db")
    return str(tmp_path / "db" / "runs.sqlite")


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("name: p\nmargin_points: 5\nguard_points: 15\n")
    return str(path)


@pytest.fixture
def evalsvc(capsys, monkeypatch):
    """Runs a command in this process; returns exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    return call


@pytest.fixture
def evalsvc_json(evalsvc):
    """The same with --json; returns exit code and the document."""

    def call(*arguments):
        code, out, _ = evalsvc(*arguments, "--json")
        return code, json.loads(out)

    return call
