"""A generated history to look around in: nights of a small experiment with one regression. No model ran for it.

Every answer is made up by a seeded generator; verdicts are the gate's own over these answers. The experiment's name and
a note on every arm say so.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import update

from evalsvc.gate import check_aa, decide_gate
from evalsvc.policy import Policy
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.records import ArmRecord, NewSample, NewScore
from evalsvc.store.schema import BaselineRow, DecisionRow, Run
from evalsvc.store.session import Store, open_store
from evalsvc.verdict.divergence import summary

VERSION = 2  # of what is written: a kept history of another one is not shown
EXPERIMENT = "generated-history"
NOTE = "generated, no model ran: answers are made up to show the pages"
NIGHTS = 60
REGRESSION_AT = 0.65  # share of the nights before it
POLICY = Policy(name="nightly", margin_points=4.0, guard_points=12.0)
SUITES = (("tools", ("choose", "refrain")), ("formats", ("json", "table")), ("tasks", ("dates", "sums")))
ITEMS = 45  # of each family
_STAGES = {
    "bf16": ("bf16", "bf16", "bf16", "bf16"),
    "fp8": ("fp8:w8a8:channel:token", "bf16", "fp8:w8a8:channel:token", "bf16"),
    "fp8-kv": ("bf16", "bf16", "bf16", "fp8:token-head"),
}
_WRONG = {"tools": "wrong_argument", "formats": "not_json", "tasks": "wrong_value"}


def write_history(path: Path, *, nights: int = NIGHTS, say: Callable[[int], None] | None = None) -> Path:
    """Writes the history into a new database; its last night began this morning.

    Args:
        path: A file that does not exist, in a folder that does.
        nights: Runs, at least 10.
        say: Told after each night how many are written.
    """
    rng = np.random.default_rng(60)
    ability = rng.random(len(SUITES) * 2 * ITEMS)
    begun = datetime.now(UTC).replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=nights - 1)
    with open_store(path, create=True) as store:
        frozen: ArmRecord | None = None
        for night in range(nights):
            at = begun + timedelta(days=night)
            damaged = night >= round(REGRESSION_AT * nights)
            run_id = _night(store, rng, ability, damaged=damaged)
            if frozen is None:
                frozen = queries.resolve_arm(store, f"{run_id}:bf16")
                promote(store, frozen, "prod", "first night of the generated history")
            aa = _again(store, rng, ability, run_id) if night in (0, nights - 1) else None
            decided = _decide(store, frozen, run_id, aa)
            _date(store, run_id, aa, decided, at)
            if say is not None:
                say(night + 1)
    return path


def _night(store: Store, rng: np.random.Generator, ability: np.ndarray, *, damaged: bool) -> int:
    run_id = _open(store, "main", None)
    losses = {"bf16": 0.0, "fp8": 0.004, "fp8-kv": 0.12 if damaged else 0.006}
    for name, loss in losses.items():
        _arm(store, run_id, name, rng, ability, loss, changed=damaged and name == "fp8-kv")
    writer.finish_run(store, run_id)
    return run_id


def _again(store: Store, rng: np.random.Generator, ability: np.ndarray, run_id: int) -> int:
    again = _open(store, "aa", run_id)
    _arm(store, again, "bf16", rng, ability, 0.0, changed=False)
    writer.finish_run(store, again)
    return again


def _open(store: Store, kind: str, linked: int | None) -> int:
    return writer.open_run(
        store,
        experiment=EXPERIMENT,
        experiment_hash=EXPERIMENT,
        resolved={"note": NOTE},
        baseline="bf16",
        seed=60,
        kind=kind,
        linked_run_id=linked,
    )


def _arm(
    store: Store, run_id: int, name: str, rng: np.random.Generator, ability: np.ndarray, loss: float, *, changed: bool
) -> None:
    formats = _STAGES[name]
    halves = [f"w={formats[0]},kv={formats[1]}", f"w={formats[2]},kv={formats[3]}"]
    flips = rng.random(ability.size)
    right = (ability < 0.72) & (flips >= loss) | (ability >= 0.72) & (flips < loss / 8)
    engine = "2" if changed else "1"
    arm_id = writer.open_arm(
        store,
        run_id,
        name=name,
        fingerprint=f"{name}-engine-{engine}",
        plan=halves[0] if halves[0] == halves[1] else " > ".join(halves),
        stages={
            "prefill": {"weights": formats[0], "kv": formats[1]},
            "decode": {"weights": formats[2], "kv": formats[3]},
        },
        injected={},
        details={"note": NOTE, "engine": engine},
        expected=ability.size,
    )
    writer.add_samples(store, run_id, arm_id, list(_samples(right)))
    if name != "bf16":
        writer.save_probe(store, arm_id, _probe(0.2 if changed else 0.004, changed=changed))
    writer.finish_arm(store, arm_id, None, "matched")


def _probe(far: float, *, changed: bool) -> dict[str, Any]:
    """KL of 24 texts of 48 tokens, made up; in decode it grows along the text where something changed."""
    rng = np.random.default_rng(5)
    places = np.tile(np.arange(48), 24)
    found = {}
    for stage in ("prefill", "decode"):
        growing = 1 + places / 12 if changed and stage == "decode" else np.ones(places.size)
        kl = far * growing * rng.exponential(size=places.size) ** 2
        found[stage] = summary(kl.tolist(), (kl < 12 * far).tolist(), places.tolist())
    return found


def _samples(right: np.ndarray) -> Iterator[NewSample]:
    number = 0
    for suite, families in SUITES:
        for family in families:
            for item in range(ITEMS):
                yield _sample(suite, family, item, bool(right[number]))
                number += 1


def _sample(suite: str, family: str, item: int, right: bool) -> NewSample:
    gold = {"tools": f'{{"name": "{family}", "arguments": {{"n": {item}}}}}', "formats": f'{{"n": {item}}}'}
    answer = gold.get(suite, f"The answer is {7 * item}.")
    if not right:
        answer = answer.replace(str(item), str(item + 1), 1) if suite == "tools" else answer[:8] + " and so on"
    error = None if right else _WRONG[suite]
    return NewSample(
        suite=suite,
        item_id=f"{family}-{item:03d}",
        item_hash=f"{family}{item}",
        family=family,
        cluster="",
        metric="correct",
        filter="none",
        chance=0.0,
        scored_by="generation",
        request_hash=f"{family}{item}",
        settings_hash="",
        rendered_hash="t",
        prompt=f"Generated example {item} of {suite}, {family}: answer in one line.",
        answer=answer,
        finish_reason="stop",
        prompt_tokens=40,
        answer_tokens=8,
        stage_tokens={"prefill": 1, "decode": 7},
        handed_over=True,
        timings={"prefill_s": 0.01, "decode_s": 0.05},
        scoring_version="1",
        scores=(NewScore(metric="correct", filter="none", value=float(right), error_class=error),),
    )


def _decide(store: Store, frozen: ArmRecord, run_id: int, again: int | None) -> list[int]:
    """The gate's decisions of a night's candidates against the frozen baseline."""
    aa = None
    if again is not None:
        first, second = queries.resolve_arm(store, f"{run_id}:bf16"), queries.resolve_arm(store, f"{again}:bf16")
        aa = check_aa(queries.pairs(store, first, second), second.address)
    decided = []
    for arm in queries.arms(store, run_id):
        if arm.id == frozen.id:
            continue
        found = decide_gate(frozen, arm, queries.pairs(store, frozen, arm), POLICY, aa)
        row = (found.policy_sha256, found.verdict, found.exit_code, found.to_json())
        decided.append(writer.save_decision(store, frozen.id, arm.id, *row))
    return decided


def _date(store: Store, run_id: int, again: int | None, decided: list[int], at: datetime) -> None:
    """Gives a night the times that it would have had."""
    began, ended = (t.isoformat(timespec="seconds") for t in (at, at + timedelta(minutes=25)))
    arms = [arm.id for arm in queries.arms(store, run_id)]
    runs = [run_id] if again is None else [run_id, again]
    with store.transaction() as session:
        session.execute(update(Run).where(Run.id.in_(runs)).values(created_at=began, finished_at=ended))
        session.execute(update(BaselineRow).where(BaselineRow.arm_id.in_(arms)).values(created_at=ended))
        session.execute(update(DecisionRow).where(DecisionRow.id.in_(decided)).values(created_at=ended))
