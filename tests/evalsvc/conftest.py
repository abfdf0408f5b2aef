"""A tiny random model and a small experiment over it: every room of a real run, in seconds."""

import hashlib
import json
import os
import random
import select
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsvc.engine.requests import GenerateResult
from evalsvc.targets.base import ArmFacts

SIX_ARMS: dict[str, Any] = {
    "bf16": {"plan": "w=bf16,kv=bf16"},
    "fp8-weights": {"plan": "w=fp8"},
    "fp8-kv-decode": {"plan": "kv=bf16 > kv=fp8:token-head"},
    "int4-asym": {"plan": "w=int4:g32:asym"},
    "mixed": {
        "plan": "w=fp8,kv=bf16 > w=int4:g32:sym,kv=fp8:tensor:calibrated",
        "calibration": "calibration.jsonl",
    },
    "damaged": {
        "plan": "kv=bf16 > kv=fp8:tensor:calibrated",
        "calibration": "calibration.jsonl",
        "inject": {"decode_k_scale": 0.25},
    },
}
TASK = """\
task: tiny_sums_{prefix}
dataset_path: json
dataset_kwargs: {{data_files: {{test: sums.jsonl, shots: shots.jsonl}}}}
test_split: test
fewshot_split: shots
fewshot_config: {{sampler: first_n}}
num_fewshot: {shots}
doc_to_text: "{{{{a}}}} plus {{{{b}}}} is"
doc_to_target: gold
output_type: multiple_choice
doc_to_choice: choices
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1, family: sums, prefix: {prefix}}}
"""


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_suites(folder: Path) -> None:
    (folder / "sums").mkdir()
    sums = [{"a": a, "b": a + 2, "choices": [str(2 * a + k) for k in range(1, 5)], "gold": 1} for a in range(8)]
    _lines(folder / "sums" / "sums.jsonl", sums[:6])
    _lines(folder / "sums" / "shots.jsonl", sums[6:])
    for prefix, shots in (("one", 1), ("two", 2)):
        (folder / "sums" / f"{prefix}.yaml").write_text(TASK.format(prefix=prefix, shots=shots))
    formats = [
        {
            "id": f"f{n}",
            "family": f"family{n % 2}",
            "prefix": f"p{n % 2}",
            "input": f"Write {n}:",
            "max_tokens": 3 + n % 4,
            "check": {"regex": "[^e-t]*"},
        }
        for n in range(14)
    ]
    _lines(folder / "formats.jsonl", formats)
    _lines(folder / "formats.prefixes.jsonl", [{"id": f"p{n}", "text": f"Some words, {n} of them. "} for n in range(2)])
    tools = [{"name": "get", "description": "gets it", "arguments": {"what": "string"}}]
    case = {"tools": tools, "expect": {"call": {"name": "get", "arguments": {"what": "it"}}}, "max_tokens": 4}
    _lines(folder / "tools.jsonl", [{"id": f"t{n}", "prompt": f"Call {n}:", **case} for n in range(4)])
    _lines(
        folder / "calibration.jsonl", [{"prompt": "Some words to measure by."}, {"prompt": "And some more of them."}]
    )
    (folder / "probe.txt").write_text("A text to compare distributions over.\n\nAnd another one.\n")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Llama of two layers whose tokens are bytes."""
    import torch
    from transformers import LlamaConfig

    from tests.tiny import TWO_LAYERS, write_model

    torch.set_num_threads(1)
    config = LlamaConfig(vocab_size=288, max_position_embeddings=256, **TWO_LAYERS)
    return write_model(tmp_path_factory.mktemp("model"), config, seed=7)


@pytest.fixture(scope="session")
def write_experiment(tiny_model: Path) -> Callable[..., Path]:
    """`write_experiment(folder, **keys)`: the demo's six arms, three small suites; `keys` replace."""

    def write(folder: Path, **keys: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "sums").exists():
            _write_suites(folder)
        experiment = {
            "name": "tiny",
            "model": str(tiny_model),
            "baseline": "bf16",
            "probe": "probe.txt",
            "seed": 3,
            "batch": 6,
            "aa": {"batch": 4},
            "kv_tokens": 2048,
            "arms": SIX_ARMS,
            "suites": [
                {"name": "tasks", "kind": "lmeval", "tasks": ["sums"]},
                {"name": "tools", "kind": "toolcall", "cases": "tools.jsonl"},
                {"name": "formats", "kind": "formats", "cases": "formats.jsonl"},
            ],
        } | keys
        path = folder / "experiment.yaml"
        path.write_text(yaml.safe_dump(experiment, sort_keys=False))
        return path

    return write


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """Scales of the tiny model are kept in a cache of these tests."""
    if "write_experiment" in request.fixturenames and "small_model" not in request.fixturenames:
        monkeypatch.setenv("EVALSVC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


# Python runs a `sitecustomize` at its start, also in the processes that a command starts.
PAUSING = """
import os
from sqlalchemy import text
from evalsvc.store import writer

add, paused = writer.add_samples, False

def add_and_pause(store, *arguments):
    global paused
    stored = add(store, *arguments)
    with store.session() as session:
        count = session.execute(text("SELECT count(*) FROM samples")).scalar_one()
    if count >= int(os.environ["PAUSE_AT"]) and not paused:
        paused = True
        with open(os.environ["PAUSE_UNTIL"], "rb", 0) as until, open(os.environ["PAUSE_TOLD"], "wb", 0) as told:
            told.write(b".")
            until.read(1)
    return stored

writer.add_samples = add_and_pause
"""


class Pause:
    """A command with this environment waits, in each of its processes, once so many samples are stored."""

    def __init__(self, folder: Path, samples: int) -> None:
        (folder / "sitecustomize.py").write_text(PAUSING)
        for name in ("told", "until"):
            os.mkfifo(folder / name)
        self._told, self._until = (os.open(folder / name, os.O_RDWR) for name in ("told", "until"))
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        self.env = {**os.environ, "PYTHONPATH": path, "PAUSE_AT": str(samples)}
        self.env |= {"PAUSE_TOLD": str(folder / "told"), "PAUSE_UNTIL": str(folder / "until")}

    def wait(self, process: subprocess.Popen[str]) -> None:
        """Returns when a process of the command waits."""
        ends = os.pidfd_open(process.pid)
        ready, _, _ = select.select([self._told, ends], [], [])
        os.close(ends)
        assert self._told in ready, f"ended before: {process.communicate()}"

    def go_on(self) -> None:
        """Lets every process go on."""
        os.write(self._until, b"." * 64)

    def close(self) -> None:
        os.close(self._told)
        os.close(self._until)


@pytest.fixture
def pause_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Pause]]:
    """`pause_at(samples)`: see `Pause`."""
    made: list[Pause] = []

    def make(samples: int) -> Pause:
        made.append(Pause(tmp_path_factory.mktemp("pause"), samples))
        return made[-1]

    yield make
    for pause in made:
        pause.close()


class Heard:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.labels: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, label: str) -> Callable[..., None]:
        self.labels.append(label)
        return lambda *told: None


@pytest.fixture(scope="session")
def execute_file() -> Callable[..., tuple[int, Heard]]:
    """`execute_file(path, database, **keys)`: `execute` in this process; returns run id and what was said."""
    from evalsvc.execution import execute
    from evalsvc.prepared import prepare
    from evalsvc.store.session import open_store

    def call(path: Path, database: Path, **keys: Any) -> tuple[int, Heard]:
        heard = Heard()
        with open_store(database, create=True) as store:
            return execute(prepare(path), store, heard, **keys), heard

    return call


class Remembered:
    """A target that answers from memory, in an order of this process: right where an item's hash says so.

    `lost` says by arm how many of 100 items it loses; it may be changed between runs.
    """

    adds_bos = None  # it knows no such token

    def __init__(self, lost: dict[str, int]) -> None:
        self.lost = lost

    def facts(self, arm: str) -> ArmFacts:
        decode = {"weights": "bf16", "kv": "bf16" if arm == "base" else f"fp8-{arm}"}
        stages = {"prefill": {"weights": "bf16", "kv": "bf16"}, "decode": decode}
        return ArmFacts(name=arm, fingerprint=f"fp-{arm}", plan=arm, stages=stages, injected={}, details={})

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
                text="yes" if draw < 80 - self.lost[arm] else "no",
                token_ids=(1, draw),
                finish_reason="stop",
                stage_tokens={"prefill": 1, "decode": 1},
            )

    def proof(self, arm: str) -> dict[str, Any]:
        return {"prefill": {"tokens_computed": 1}, "decode": {"tokens_computed": 1}, "mismatches": []}


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int, dict[str, int]], Path]:
    """`in_memory(folder, items, lost)`: writes an experiment of these arms, `base` first, that runs without an engine.

    Runs of this test are then answered by `Remembered(lost)`.
    """
    from evalsvc import execution

    def write(folder: Path, items: int, lost: dict[str, int]) -> Path:
        check = {"text_equals": "yes"}
        cases = [{"id": f"i{n}", "family": f"f{n % 3}", "input": f"item {n}", "check": check} for n in range(items)]
        _lines(folder / "cases.jsonl", cases)
        plans = ("w=bf16", "w=int4", "kv=bf16 > kv=fp8", "w=fp8")
        content = {
            "name": "e",
            "model": "m",
            "baseline": "base",
            "arms": {name: {"plan": plan} for name, plan in zip(lost, plans, strict=False)},
            "suites": [{"name": "formats", "kind": "formats", "cases": "cases.jsonl"}],
        }
        (folder / "experiment.yaml").write_text(yaml.safe_dump(content))
        target = Remembered(lost)
        monkeypatch.setattr(execution, "_target", lambda *_: target)
        return folder / "experiment.yaml"

    return write


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, Any]]:
    """`contents(database)`: all that a run says that is no time, no id and no trace of how it was batched."""
    import sqlite3

    def read(database: Path) -> dict[str, Any]:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            samples = connection.execute(
                "SELECT r.kind, a.name, a.fingerprint, i.suite, i.item_id, i.item_hash, s.through, s.request_hash,"
                " s.settings_hash, s.rendered_hash, s.repeat, s.status, s.error_class, s.prompt, s.answer,"
                " s.finish_reason, s.prompt_tokens, s.answer_tokens, s.stage_tokens, s.handed_over, c.metric, c.value,"
                " c.error_class FROM samples s JOIN arms a ON a.id = s.arm_id JOIN runs r ON r.id = s.run_id"
                " JOIN items i ON i.id = s.item_pk LEFT JOIN scores c ON c.sample_id = s.id"
            ).fetchall()
            arms = connection.execute(
                "SELECT r.kind, r.status, a.name, a.plan, a.status, a.proof_status, a.expected, a.probe"
                " FROM arms a JOIN runs r ON r.id = a.run_id"
            ).fetchall()
        connection.close()
        return {"samples": sorted(map(repr, samples)), "arms": sorted(map(repr, arms))}

    return read


@pytest.fixture(scope="session")
def six_arms(tmp_path_factory, write_experiment, execute_file) -> tuple[Path, Path]:
    """Experiment file and database of one finished run of six arms and its A/A. Copy the database before writing."""
    folder = tmp_path_factory.mktemp("six")
    path = write_experiment(folder / "experiment")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALSVC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        execute_file(path, folder / "runs.sqlite")
    return path, folder / "runs.sqlite"
