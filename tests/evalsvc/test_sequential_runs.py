"""Runs under a sequential policy, from the file to the decision, with a target in memory that answers at once."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsvc import execution
from evalsvc.cli.deciding import decide_stored
from evalsvc.engine.requests import GenerateResult, RequestFailure, Timings
from evalsvc.errors import ConfigError
from evalsvc.execution import execute
from evalsvc.policy import Policy
from evalsvc.prepared import prepare
from evalsvc.store import queries
from evalsvc.store.session import open_store
from evalsvc.targets.base import ArmFacts

POLICY = Policy(name="s", design="sequential", block_items=50, margin_points=3.0, guard_points=10.0)
RIGHT_OF_100 = {"base": 80, "same": 80, "worse": 55, "slightly": 77}
ITEMS = {"one": 400, "two": 200}


class Quick:
    """Each arm is right where an item's hash says so; `fail` may stop it or fail a request."""

    adds_bos = None  # it knows no such token

    def __init__(self, fail: Any = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self._fail = fail

    def facts(self, arm: str) -> ArmFacts:
        stage = {"weights": "bf16", "kv": "bf16"}
        decode = {**stage, "kv": "bf16" if arm == "base" else f"fp8-{arm}"}
        stages = {"prefill": stage, "decode": decode}
        return ArmFacts(name=arm, fingerprint=f"fp-{arm}", plan=arm, stages=stages, injected={}, details={})

    def submit(self, requests: Sequence[Any]) -> Iterator[GenerateResult | RequestFailure]:
        for request in requests:
            for arm in request.arms:
                self.asked.append((arm, request.prompt))
                problem = self._fail(arm, request.prompt, len(self.asked)) if self._fail else None
                if problem is not None:
                    yield replace(problem, id=request.id, arm=arm)
                    continue
                draw = int(hashlib.sha256(request.prompt.encode()).hexdigest(), 16) % 100
                yield GenerateResult(
                    id=request.id,
                    arm=arm,
                    prompt_tokens=3,
                    prompt_sha256="r",
                    timings=Timings(queue_s=0.0, prefill_s=0.1, decode_s=0.1),
                    text="yes" if draw < RIGHT_OF_100[arm] else "no",
                    token_ids=(1, 2),
                    finish_reason="stop",
                    stage_tokens={"prefill": 1, "decode": 1},
                )

    def proof(self, arm: str) -> dict[str, Any]:
        return {"prefill": {"tokens_computed": 1}, "decode": {"tokens_computed": 1}, "mismatches": []}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    for name, count in ITEMS.items():
        cases = [
            {"id": f"{name}{n}", "family": "f", "input": f"{name} {n}", "check": {"text_equals": "yes"}}
            for n in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    plans = {"base": "w=bf16", "same": "kv=bf16 > kv=fp8", "worse": "w=int4", "slightly": "w=fp8"}
    content = {
        "name": "e",
        "model": "m",
        "baseline": "base",
        "seed": 5,
        "aa": None,
        "arms": {name: {"plan": plan} for name, plan in plans.items()},
        "suites": [{"name": name, "kind": "formats", "cases": f"{name}.jsonl"} for name in ITEMS],
    }
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


class Quiet:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, label: str):
        return lambda *told: None


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`go(experiment, database, policy, fail)`: runs it; returns what was asked and what was said."""

    def call(path: Path, database: str = "a.sqlite", policy: Policy | None = POLICY, fail: Any = None):
        target, heard = Quick(fail), Quiet()
        monkeypatch.setattr(execution, "_target", lambda *given: target)
        with open_store(tmp_path / database, create=True) as store:
            execute(prepare(path), store, heard, policy=policy)
        return target.asked, heard.notes

    return call


def decisions(database: Path, policy: Policy = POLICY) -> dict[str, dict[str, Any]]:
    with open_store(database, read_only=True) as store:
        base, *others = queries.arms(store, 1)
        return {arm.name: decide_stored(store, base, arm, policy).to_json() for arm in others}


def counts(asked: list[tuple[str, str]]) -> dict[str, int]:
    return {arm: sum(name == arm for name, _ in asked) for arm in RIGHT_OF_100}


def test_decided_arms_are_asked_no_more_and_it_says_what_that_saves(experiment, go, tmp_path):
    asked, notes = go(experiment)
    seen = counts(asked)
    assert seen["base"] == 600, "the baseline is asked everything"
    assert seen["worse"] == 100 and seen["same"] < 600
    decided = decisions(tmp_path / "a.sqlite")
    assert decided["worse"]["verdict"] == "REGRESSED" and decided["worse"]["severity"] == "beyond margin"
    assert decided["worse"]["stop"] == {"word": "REGRESSED", "items": 100, "planned": 600, "looks": 2}
    assert "decided after 100 of 600 items" in decided["worse"]["sentence"]
    assert decided["same"]["verdict"] == "PASS" and decided["same"]["stop"]["items"] == seen["same"]
    assert any("worse: REGRESSED after 100 of 600 items; 500 items (83 %) are not asked" in note for note in notes)
    n = next(row["n"] for row in decided["worse"]["rows"] if row["level"] == "pooled")
    assert n == 100, "what was not asked is in no count"


def test_a_fixed_policy_asks_everything_and_cannot_judge_what_was_stopped(experiment, go, tmp_path):
    go(experiment)
    fixed = decisions(tmp_path / "a.sqlite", Policy(name="f", margin_points=3.0, guard_points=10.0))
    assert fixed["worse"]["verdict"] == "INVALID"
    assert "stopped early, after 100 of 600 items" in fixed["worse"]["sentence"]
    asked, _ = go(experiment, "b.sqlite", policy=None)
    assert set(counts(asked).values()) == {600}


def test_all_answers_are_judged_by_the_look_that_decides(experiment, go, tmp_path):
    go(experiment)
    go(experiment, "b.sqlite", policy=None)
    stopped, whole = decisions(tmp_path / "a.sqlite"), decisions(tmp_path / "b.sqlite")
    for name in stopped:
        for decision in (stopped[name], whole[name]):
            for arm in ("baseline", "candidate"):
                decision.pop(arm)
        assert stopped[name] == whole[name], "surplus answers change nothing"


@pytest.mark.parametrize("at", [1, 399, 1100])
def test_an_interrupted_run_decides_as_an_uninterrupted_one(experiment, go, tmp_path, at):
    def stop(arm: str, prompt: str, count: int) -> None:
        if count == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(experiment, "b.sqlite", fail=stop)
    go(experiment, "b.sqlite")
    go(experiment, "a.sqlite")
    assert decisions(tmp_path / "b.sqlite") == decisions(tmp_path / "a.sqlite")


def test_a_look_waits_for_what_unanswered_items_could_change(experiment, go, tmp_path):
    """A twentieth of one arm's requests fail: no PASS while each could be a loss."""

    def fail(arm: str, prompt: str, count: int) -> RequestFailure | None:
        failed = arm == "same" and int(prompt.split()[1]) % 20 == 0
        return RequestFailure(id="", error="timeout", message="too late") if failed else None

    asked, _ = go(experiment, fail=fail)
    assert counts(asked)["same"] == 600
    tolerant = POLICY.model_copy(update={"max_error_points": 20.0})
    decided = decisions(tmp_path / "a.sqlite", tolerant)["same"]
    assert decided["verdict"] == "INCONCLUSIVE" and decided["stop"] is None


def test_a_stopped_arm_is_no_baseline(experiment, go, tmp_path):
    go(experiment)
    with open_store(tmp_path / "a.sqlite", read_only=True) as store:
        arms = {arm.name: arm for arm in queries.arms(store, 1)}
        decision = decide_stored(store, arms["worse"], arms["same"], POLICY)
    assert decision.verdict == "INVALID" and "can only be a candidate" in decision.sentence


def test_another_policy_reads_no_more_than_what_the_arm_holds(experiment, go, tmp_path):
    go(experiment)
    strict = POLICY.model_copy(update={"margin_points": 0.1, "block_items": 30})
    decided = decisions(tmp_path / "a.sqlite", strict)
    assert decided["same"]["verdict"] == "INCONCLUSIVE"
    assert decided["worse"]["verdict"] == "REGRESSED" and decided["worse"]["stop"]["items"] <= 100


@pytest.mark.parametrize("field", [{"block_items": 0}, {"block_items": -5}, {"design": "peeking"}])
def test_a_design_that_is_none_is_refused(field, tmp_path):
    from evalsvc.policy import load_policy

    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({"name": "p", **field}))
    with pytest.raises(ConfigError, match=next(iter(field))):
        load_policy(path)


def test_prompts_that_carry_no_verdict_hold_none_back_and_are_all_asked(experiment, go, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "along_own_prompts", lambda *given: {})  # reads a real model's tokens
    go(experiment)
    alone = decisions(tmp_path / "a.sqlite")
    (tmp_path / "own.jsonl").write_text("".join(f'{{"id": "own{n}", "prompt": "own {n}"}}\n' for n in range(90)))
    content = yaml.safe_load(experiment.read_text())
    content["suites"].append({"name": "own", "kind": "prompts", "cases": "own.jsonl"})
    experiment.write_text(yaml.safe_dump(content))
    asked, notes = go(experiment, "b.sqlite")
    own = [(arm, prompt) for arm, prompt in asked if prompt.startswith("own ")]
    assert sorted(own) == sorted((arm, f"own {n}") for arm in RIGHT_OF_100 for n in range(90))
    assert any("worse: REGRESSED after 100 of 600 items; 500 items (83 %) are not asked" in note for note in notes)
    beside = decisions(tmp_path / "b.sqlite")
    assert {name: beside[name]["stop"] for name in beside} == {name: alone[name]["stop"] for name in alone}
    assert {name: beside[name]["verdict"] for name in beside} == {name: alone[name]["verdict"] for name in alone}


def arms_of(parts: tuple[Any, ...]) -> tuple[str, ...]:
    return next(part.arms for part in parts if isinstance(part, execution.Job))


def test_the_baseline_answers_before_what_looks_at_it(experiment, monkeypatch, tmp_path):
    """With several processes too: a candidate that is ahead of the baseline would be asked in vain."""
    content = yaml.safe_load(experiment.read_text()) | {"workers": 2}
    experiment.write_text(yaml.safe_dump(content))
    target, begun = Quick(), []
    monkeypatch.setattr(execution, "_target", lambda *given: target)
    stages = {name: {"prefill": {"weights": name}, "decode": {}} for name in RIGHT_OF_100}
    monkeypatch.setattr(
        target, "facts", lambda arm: ArmFacts(**{**vars(Quick().facts(arm)), "stages": stages[arm]}), raising=True
    )
    monkeypatch.setattr(
        execution, "run_parallel", lambda work, jobs, workers, report: begun.append([arms_of(job) for job in jobs])
    )
    monkeypatch.setattr(execution, "run_job", lambda prepared, store, job, policy, report: begun.append([job.arms]))
    monkeypatch.setattr(execution.writer, "finish_run", lambda store, run_id: None)
    for name, policy in (("a", POLICY), ("b", None)):
        with open_store(tmp_path / f"{name}.sqlite", create=True) as store:
            execute(prepare(experiment), store, Quiet(), policy=policy)
    assert begun[0] == [("base",)] and sorted(begun[1]) == [("same",), ("slightly",), ("worse",)]
    assert sorted(begun[2]) == [("base",), ("same",), ("slightly",), ("worse",)] and len(begun) == 3
