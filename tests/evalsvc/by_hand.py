"""Arms, pairs and samples by hand: a test says what it is about, all else is one sound arm's answer to one item."""

from dataclasses import replace
from typing import Any

from evalsvc.store import writer
from evalsvc.store.records import ArmRecord, NewSample, NewScore, Pair, Side
from evalsvc.store.session import Store

BF16 = {"weights": "bf16", "kv": "bf16", "checkpoint": "c0", "fault": ""}


def arm(name: str, kv: str = "bf16", **fields: Any) -> ArmRecord:
    """An arm of a finished run, served as its plan says; `kv` is the decode stage's."""
    made = ArmRecord(
        id=len(name),
        run_id=1,
        run_kind="main",
        run_status="finished",
        linked_run_id=None,
        experiment="e",
        baseline="base",
        name=name,
        fingerprint=f"fp-{name}",
        plan="w=bf16,kv=bf16",
        stages={"prefill": BF16, "decode": {**BF16, "kv": kv}},
        injected={},
        details={},
        status="finished",
        proof={},
        proof_status="matched",
        probe=None,
        expected=1,
    )
    return replace(made, **fields)


def side(value: float | None = 1.0, **fields: Any) -> Side:
    """An answer that both stages made; None: an error."""
    made = Side(
        sample_id=1,
        item_hash="i",
        request_hash="r",
        settings_hash="s",
        rendered_hash="t",
        status="error" if value is None else "scored",
        value=value,
        error_class=None,
        finish_reason="stop",
        stage_tokens={} if value is None else {"prefill": 1, "decode": 9},
        handed_over=True,
    )
    return replace(made, **fields)


def pair(baseline: Side | None, candidate: Side | None, **fields: Any) -> Pair:
    """Two arms' answers to one generated item."""
    made = Pair(
        suite="tasks",
        family="f",
        cluster="",
        item_id="i0",
        through="",
        scored_by="generation",
        metric="exact",
        chance=0.0,
        repeat=0,
        baseline=baseline,
        candidate=candidate,
    )
    return replace(made, **fields)


def sample(item_id: str = "i0", value: float | None = None, **fields: Any) -> NewSample:
    """An answer to store; `value` is that of the item's own metric, None leaves it without a score."""
    made = NewSample(
        suite="tasks",
        item_id=item_id,
        item_hash="h",
        family="f",
        cluster="",
        metric="exact",
        filter="none",
        chance=0.0,
        scored_by="generation",
        request_hash="r",
        settings_hash="s",
        rendered_hash="t",
        stage_tokens={"prefill": 1, "decode": 9},
        handed_over=True,
        scoring_version="1",
    )
    made = replace(made, **fields)
    if value is None:
        return made
    return replace(made, scores=(NewScore(metric=made.metric, filter=made.filter, value=float(value)),))


def open_run(store: Store, **fields: Any) -> int:
    """Starts a run and returns its id."""
    blank = {"experiment": "e", "experiment_hash": "h", "resolved": {}, "baseline": "base", "seed": 0}
    return writer.open_run(store, **(blank | fields))


def open_arm(store: Store, run_id: int, name: str, **fields: Any) -> int:
    """Opens an arm and returns its id."""
    blank = {"plan": "w=bf16", "stages": {}, "injected": {}, "details": {}, "expected": 1, "fingerprint": name}
    return writer.open_arm(store, run_id, name=name, **(blank | fields))
