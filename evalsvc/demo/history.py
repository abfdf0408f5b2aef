"""A generated history to look around in: nights of a small experiment with one regression. No model ran for it.

Every answer is made up by a seeded generator; verdicts are the gate's own over these answers. The experiment's name and
a note on every arm say so.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import update

from evalsvc.demo.arms import CAPABILITIES, DEVICE, STAGES, measure, plan_of, probe_of, proof_of, stages_of
from evalsvc.demo.cases import Asked, write_cases
from evalsvc.expected import FOLDER
from evalsvc.gate import check_aa, decide_gate
from evalsvc.policy import Policy
from evalsvc.questions import item_fields
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.job_tables import AlertRow, ExecutionRow, ScheduleRow, stamp
from evalsvc.store.records import ArmRecord, NewSample
from evalsvc.store.schema import BaselineRow, DecisionRow, Run
from evalsvc.store.session import Store, open_store

VERSION = 3  # of what is written: a kept history of another one is not shown
EXPERIMENT = "generated-history"
NOTE = "generated, no model ran: answers are made up to show the pages"
JOB = "nightly"
NIGHTS = 60
REGRESSION_AT = 0.65  # share of the nights before it
POLICY = Policy(name=JOB, margin_points=4.0, guard_points=12.0)
_PROMPT_TOKENS, _ANSWER_TOKENS = 40, 8  # of an item


class Nights:
    """Writes night after night into one store."""

    def __init__(self, store: Store, folder: Path, asked: Sequence[Asked], suites: Sequence[dict[str, object]]) -> None:
        """Of these items, whose case files lie, or will lie, in the folder."""
        self.store, self.asked = store, asked
        self.resolved = {"note": NOTE, FOLDER: str(folder), "suites": list(suites)}
        self.rng = np.random.default_rng(61)
        self.ability = self.rng.random(len(asked))

    def night(self, *, damaged: bool) -> int:
        """A run of all arms; a damaged one is of an engine that breaks the fp8 cache of decode."""
        run_id = self._open("main", None)
        losses = {"bf16": 0.0, "fp8": 0.004, "fp8-prefill": 0.002, "fp8-kv": 0.12 if damaged else 0.006}
        for name, loss in losses.items():
            self._arm(run_id, name, loss, changed=damaged)
        writer.finish_run(self.store, run_id)
        return run_id

    def again(self, run_id: int, *, damaged: bool) -> int:
        """The run's A/A."""
        again = self._open("aa", run_id)
        self._arm(again, "bf16", 0.0, changed=damaged)
        writer.finish_run(self.store, again)
        return again

    def _open(self, kind: str, linked: int | None) -> int:
        about: dict[str, Any] = {
            "experiment": EXPERIMENT,
            "experiment_hash": EXPERIMENT,
            "resolved": self.resolved,
            "baseline": "bf16",
        }
        return writer.open_run(self.store, **about, seed=60, kind=kind, linked_run_id=linked)

    def _arm(self, run_id: int, name: str, loss: float, *, changed: bool) -> None:
        flips = self.rng.random(self.ability.size)
        right = (self.ability < 0.72) & (flips >= loss) | (self.ability >= 0.72) & (flips < loss / 8)
        engine = "2" if changed else "1"
        arm_id = writer.open_arm(
            self.store,
            run_id,
            name=name,
            fingerprint=f"{name}-engine-{engine}",
            plan=plan_of(name),
            stages=stages_of(name),
            injected={},
            details={"note": NOTE, "engine": engine, "device": DEVICE},
            expected=right.size,
            capabilities=CAPABILITIES,
        )
        samples = [_sample(one, int(good)) for one, good in zip(self.asked, right, strict=True)]
        writer.add_samples(self.store, run_id, arm_id, samples)
        if name != "bf16":
            writer.save_probe(self.store, arm_id, probe_of(name, changed=changed and name == "fp8-kv"))
        proof = proof_of(name, _PROMPT_TOKENS * right.size, _ANSWER_TOKENS * right.size)
        writer.finish_arm(self.store, arm_id, proof, "matched")


def write_history(
    path: Path, *, nights: int = NIGHTS, folder: Path | None = None, say: Callable[[int], None] | None = None
) -> Path:
    """Writes the history into a new database, and its case files beside it; its last night began this morning.

    Args:
        path: A file that does not exist, in a folder that does.
        nights: Runs, at least 10.
        folder: Where the case files will lie, if they are moved afterwards; beside the database without it.
        say: Told after each night how many are written.
    """
    begun = datetime.now(UTC).replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=nights - 1)
    with open_store(path, create=True) as store:
        written = Nights(store, folder or path.parent, *write_cases(path.parent))
        frozen: ArmRecord | None = None
        told = []
        for night in range(nights):
            at = begun + timedelta(days=night)
            damaged = night >= round(REGRESSION_AT * nights)
            run_id = written.night(damaged=damaged)
            if frozen is None:
                frozen = queries.resolve_arm(store, f"{run_id}:bf16")
                promote(store, frozen, "prod", "first night of the generated history")
            aa = written.again(run_id, damaged=damaged) if night in (0, nights - 1) else None
            decided = _decide(store, frozen, run_id, aa)
            _date(store, run_id, aa, decided, at)
            told.append((at, run_id, damaged))
            if say is not None:
                say(night + 1)
        _jobs(store, told)
        for name in STAGES:
            for engine in "12":
                measure(store, name, f"{name}-engine-{engine}")
    return path


def _sample(asked: Asked, right: int) -> NewSample:
    item = asked.item
    return NewSample(
        **item_fields(asked.suite, item),
        scored_by=item.scored_by,
        right_answer=item.right_answer,
        request_hash=item.sha256,
        settings_hash="",
        rendered_hash="t",
        prompt=asked.prompt,
        answer=asked.answers[right],
        finish_reason="stop",
        prompt_tokens=_PROMPT_TOKENS,
        answer_tokens=_ANSWER_TOKENS,
        stage_tokens={"prefill": 1, "decode": _ANSWER_TOKENS - 1},
        handed_over=True,
        timings={"prefill_s": 0.01, "decode_s": 0.05},
        scoring_version=asked.scoring_version,
        scores=asked.scores[right],
        turns=asked.turns[right],
        alternatives=asked.alternatives[right],
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


def _jobs(store: Store, nights: Sequence[tuple[datetime, int, bool]]) -> None:
    """The schedule that would have run the nights, each with its end, and what was told."""
    last, _, worse = nights[-1]
    with store.transaction() as session:
        schedule: dict[str, Any] = {"job": JOB, "cron": "0 2 * * *", "time_zone": "UTC", "seen_until": stamp(last)}
        session.add(ScheduleRow(**schedule))
        session.flush()
        for at, run_id, damaged in nights:
            ended = stamp(at + timedelta(minutes=25))
            about: dict[str, Any] = {
                "planned_at": stamp(at),
                "not_before": stamp(at),
                "started_at": stamp(at),
                "ended_at": ended,
            }
            result: dict[str, Any] = {"exit_code": int(damaged), "message": "fp8-kv: REGRESSED" if damaged else None}
            session.add(ExecutionRow(job=JOB, **about, status="done", attempt=1, run_id=run_id, **result))
        word = "REGRESSED" if worse else "PASS"
        told: dict[str, Any] = {"word": word, "alert": word if worse else "", "planned_at": stamp(last)}
        session.add(AlertRow(job=JOB, subject="arm:fp8-kv", **told))
