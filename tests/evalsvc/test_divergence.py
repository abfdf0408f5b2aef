"""KL along the baseline's own answers: through each stage, over every token that it wrote."""

import json

import pytest

from evalsvc.store import queries
from evalsvc.store.answers import answers
from evalsvc.store.session import open_store

ARMS = {
    "bf16": {"plan": "w=bf16"},
    "kv": {"plan": "kv=bf16 > kv=fp8:token-head"},
    "int4": {"plan": "w=int4:g32:sym"},
}
OWN = [{"name": "own", "kind": "prompts", "cases": "own.jsonl"}]
PROMPTS = [{"id": f"p{n}", "prompt": f"Say {n}:", "max_tokens": 5 + n} for n in range(4)]


@pytest.fixture
def run(write_experiment, execute_file, tmp_path):
    """Runs own prompts; returns arms by name and the tokens that the baseline wrote."""

    def call(**keys):
        path = write_experiment(tmp_path / "e", **{"arms": ARMS, "suites": OWN, "probe": None, "aa": None, **keys})
        (path.parent / "own.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
        execute_file(path, tmp_path / "r.sqlite", new=True)
        with open_store(tmp_path / "r.sqlite", read_only=True) as store:
            newest = max(run.id for run in queries.runs(store) if run.kind == "main")
            arms = {arm.name: arm for arm in queries.arms(store, newest)}
            written = sum(len(answer.turns[0].token_ids) for answer in answers(store, arms["bf16"]))
        return arms, written

    return call


def test_a_stage_that_is_the_baselines_diverges_nowhere_and_another_does(run):
    arms, written = run()
    assert arms["bf16"].probe is None
    kv, int4 = arms["kv"].probe, arms["int4"].probe
    assert set(kv) == set(int4) == {"answers_prefill", "answers_decode"} and written > 10
    assert {found["tokens"] for probe in (kv, int4) for found in probe.values()} == {written}
    assert (kv["answers_prefill"]["kl_max"], kv["answers_prefill"]["same_top1"]) == (0, 1)
    assert 0 < kv["answers_decode"]["kl_mean"] < kv["answers_decode"]["kl_max"]
    assert int4["answers_prefill"]["kl_mean"] > 0 and int4["answers_prefill"]["same_top1"] < 1


def test_it_stands_beside_the_probe_and_processes_change_nothing(run, evalsvc_shows):
    alone, _ = run()
    beside, _ = run(probe="probe.txt", workers=2)
    assert set(beside["kv"].probe) == {"prefill", "decode", "answers_prefill", "answers_decode"}
    assert all(beside[name].probe.items() >= alone[name].probe.items() for name in ("kv", "int4"))
    assert all(arm.proof_status == "matched" for arm in beside.values())
    assert "answers_decode" in evalsvc_shows(beside["kv"])


@pytest.fixture
def evalsvc_shows():
    """What `show` prints of an arm."""
    from rich.console import Console

    from evalsvc.cli.listing import render_arm
    from evalsvc.store.records import ArmTotals

    def call(arm):
        console = Console(width=100)
        totals = ArmTotals(samples=1, errors=0, skipped=0, prompt_tokens=1, answer_tokens=1, seconds=None)
        with console.capture() as captured:
            console.print(render_arm(arm, totals))
        return captured.get()

    return call
