"""A store in a temporary folder and samples to put in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalsvc.store import writer
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.session import Store, open_store


class Build:
    """Fills a store with small rows; every argument can be changed by name."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(self, **changes: Any) -> int:
        values: dict[str, Any] = {"experiment": "e", "experiment_hash": "h", "resolved": {}, "baseline": "base"}
        return writer.open_run(self.store, **(values | {"seed": 1} | changes))

    def arm(self, run_id: int, name: str = "base", **changes: Any) -> int:
        values: dict[str, Any] = {
            "name": name,
            "fingerprint": f"fp-{name}",
            "plan": "w=bf16,kv=bf16",
            "stages": {"prefill": {"weights": "bf16"}, "decode": {"weights": "bf16"}},
            "injected": {},
            "details": {},
            "expected": 10,
        }
        return writer.open_arm(self.store, run_id, **(values | changes))

    def finished(self, *names: str, **run: Any) -> tuple[int, list[int]]:
        """A finished run of finished arms without samples."""
        run_id = self.run(**run)
        arm_ids = [self.arm(run_id, name) for name in names]
        for arm_id in arm_ids:
            writer.finish_arm(self.store, arm_id, None, "declared")
        writer.finish_run(self.store, run_id)
        return run_id, arm_ids

    @staticmethod
    def sample(item: int | str = 0, value: float | None = 1.0, **changes: Any) -> NewSample:
        """A scored sample of one item; `value` None leaves it without a score."""
        scores = () if value is None else (NewScore(metric="acc", filter="none", value=value),)
        values: dict[str, Any] = {
            "suite": "tasks",
            "item_id": str(item),
            "item_hash": f"i{item}",
            "family": "addition",
            "cluster": "p0",
            "metric": "acc",
            "filter": "none",
            "chance": 0.25,
            "scored_by": "loglikelihood",
            "request_hash": f"r{item}",
            "settings_hash": "s",
            "rendered_hash": f"t{item}",
            "prompt": "2 + 2 =",
            "answer": "4",
            "finish_reason": "stop",
            "stage_tokens": {"decode": 1},
            "timings": {"prefill_s": 0.25, "decode_s": 0.5, "queue_s": 9.0},
            "prompt_tokens": 5,
            "answer_tokens": 1,
            "scoring_version": "1",
            "scores": scores,
        }
        return NewSample(**(values | changes))

    def error(self, item: int | str = 0, **changes: Any) -> NewSample:
        values = {"status": "error", "error_class": "Timeout", "error_message": "no answer in 60 s"}
        return self.sample(item, None, **(values | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What needs a store runs on both databases, unless it looks into the file."""
    if "store" in metafunc.fixturenames:
        both = ["sqlite", "postgresql"]
        metafunc.parametrize("kind", both[:1] if "path" in metafunc.definition._fixtureinfo.argnames else both)


@pytest.fixture
def store(path: Path, kind: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    where = path if kind == "sqlite" else request.getfixturevalue("postgres").new()
    with open_store(where, create=True, timeout_s=0.2) as opened:
        yield opened


@pytest.fixture
def build(store: Store) -> Build:
    return Build(store)
