"""The runner killed at whatever moment the clock shows, again and again: it ends as if nobody had.

The target answers from memory, in another order in every process, so that thirty runs take seconds.
"""

import hashlib
import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsvc import execution
from evalsvc.cli.run_report import decide_run
from evalsvc.engine.requests import GenerateResult
from evalsvc.execution import execute, prepare
from evalsvc.policy import Policy
from evalsvc.store.session import open_store
from evalsvc.targets.base import ArmFacts

ITEMS = 150
ARMS = {"base": "w=bf16", "worse": "w=int4", "kv": "kv=bf16 > kv=fp8"}
LOST = {"base": 0, "worse": 25, "kv": 1}  # of 100 items


class Remembered:
    """An arm is right where an item's hash says so; answers come in an order of this process."""

    def facts(self, arm: str) -> ArmFacts:
        decode = {"weights": "bf16", "kv": "bf16" if arm == "base" else f"fp8-{arm}"}
        stages = {"prefill": {"weights": "bf16", "kv": "bf16"}, "decode": decode}
        return ArmFacts(name=arm, fingerprint=f"fp-{arm}", plan=ARMS[arm], stages=stages, injected={}, details={})

    def submit(self, requests: Sequence[Any]) -> Iterator[GenerateResult]:
        asked = [(request, arm) for request in requests for arm in request.arms]
        random.Random(os.getpid()).shuffle(asked)
        for request, arm in asked:
            draw = int(hashlib.sha256(request.prompt.encode()).hexdigest(), 16) % 100
            yield GenerateResult(
                id=request.id,
                arm=arm,
                prompt_tokens=3,
                prompt_sha256=request.prompt,
                text="yes" if draw < 80 - LOST[arm] else "no",
                token_ids=(1, draw),
                finish_reason="stop",
                stage_tokens={"prefill": 1, "decode": 1},
            )

    def proof(self, arm: str) -> dict[str, Any]:
        return {"prefill": {"tokens_computed": 1}, "decode": {"tokens_computed": 1}, "mismatches": []}


class Silent:
    """A reporter that says nothing."""

    def note(self, text: str) -> None:
        pass

    def progress(self, label: str) -> Callable[..., None]:
        return lambda *told: None


@pytest.fixture
def run(tmp_path, monkeypatch) -> Callable[[Path], None]:
    """`run(database)`: the experiment to its decisions, in this process."""
    cases = [
        {"id": f"i{n}", "family": f"f{n % 3}", "input": f"item {n}", "check": {"text_equals": "yes"}}
        for n in range(ITEMS)
    ]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    content = {
        "name": "e",
        "model": "m",
        "baseline": "base",
        "arms": {name: {"plan": plan} for name, plan in ARMS.items()},
        "suites": [{"name": "formats", "kind": "formats", "cases": "cases.jsonl"}],
    }
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(execution, "_target", lambda *_: Remembered())
    prepared = prepare(tmp_path / "e.yaml")

    def call(database: Path) -> None:
        with open_store(database, create=True) as store:
            decide_run(store, execute(prepared, store, Silent()), Policy(name="p", margin_points=3.0))

    return call


def killed(call: Callable[[], None], seconds: float) -> bool:
    """Runs `call` in a copy of this process and kills it after a while; False when it came to its end before."""
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 3)
    ends = os.pidfd_open(child)
    select.select([ends], [], [], seconds)
    os.close(ends)
    os.kill(child, signal.SIGKILL)  # of one that ended nothing is left but its status
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the copy ended with status {status}"
    return status == signal.SIGKILL


def said(database: Path) -> list[str]:
    """The last decision about each candidate, as it was stored."""
    query = "SELECT decision FROM decisions WHERE id IN (SELECT max(id) FROM decisions GROUP BY candidate_arm_id)"
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sorted(decision for (decision,) in connection.execute(query))


def stored(database: Path) -> int:
    """Samples in a database that may not be there yet."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM samples").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_killed_at_thirty_random_moments_and_gone_on_with_each_time(run, contents, tmp_path):
    began = time.monotonic()
    run(tmp_path / "whole.sqlite")
    took = time.monotonic() - began
    whole = contents(tmp_path / "whole.sqlite"), said(tmp_path / "whole.sqlite")
    assert [json.loads(text)["verdict"] for text in whole[1]].count("REGRESSED") == 1
    rng, deaths, number, between = random.Random(11), 0, 0, set[int]()
    while deaths < 30:
        database, number = tmp_path / f"{number}.sqlite", number + 1
        while killed(lambda database=database: run(database), rng.uniform(0, took)):
            deaths += 1
            between.add(stored(database))
        assert (contents(database), said(database)) == whole, f"database {number}, after {deaths} kills in all"
    assert len(between - {0, ITEMS * 4}) >= 5, "moments between the first sample and the last"
