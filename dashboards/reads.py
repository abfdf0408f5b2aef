"""What the pages need from the database, read-only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalsvc.dashboards.rows import VerdictRow, rows_of
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord, ArmTotals, RunRecord
from evalsvc.store.session import Store


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One arm against the baseline; `decision` is None until a gate has decided it."""

    arm: ArmRecord
    totals: ArmTotals
    decision: Mapping[str, Any] | None
    word: str | None
    rows: tuple[VerdictRow, ...]
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The A/A, the baseline against itself. `checked` is the gate's result {n, lost, gained, ...}, None before it."""

    address: str
    checked: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run against one baseline."""

    run: RunRecord
    baseline: ArmRecord
    baseline_totals: ArmTotals
    candidates: tuple[Candidate, ...]
    repeat: Repeat | None


def main_runs(store: Store) -> list[RunRecord]:
    """Runs that have a baseline to look at, newest first."""
    return [run for run in reversed(queries.runs(store)) if run.kind == "main" and run.arms]


def baselines(store: Store, run: RunRecord) -> list[ArmRecord]:
    """Arms that a page can compare with: the run's own baseline, then others that a gate was asked about.

    An arm with an injected fault is none.
    """
    by_id = {arm.id: arm for arm in queries.arms(store)}
    of_run = [arm for arm in by_id.values() if arm.run_id == run.id]
    asked = {row["baseline_arm_id"] for row in queries.decisions(store, run.id)}
    own = [arm for arm in of_run if arm.name == run.baseline]
    others = [arm for arm in by_id.values() if arm.id in asked and arm not in own]
    return [arm for arm in own + others if not arm.injected]


def run_view(store: Store, run: RunRecord, baseline: ArmRecord) -> RunView:
    """Everything of the verdict page."""
    decided = {
        d["candidate_arm_id"]: d for d in queries.decisions(store, run.id) if d["baseline_arm_id"] == baseline.id
    }
    others = [arm for arm in queries.arms(store, run.id) if arm.id != baseline.id]
    candidates = tuple(_candidate(store, arm, decided.get(arm.id)) for arm in others)
    return RunView(
        run=run,
        baseline=baseline,
        baseline_totals=queries.arm_totals(store, baseline.id),
        candidates=candidates,
        repeat=_repeat(store, baseline, candidates),
    )


def _candidate(store: Store, arm: ArmRecord, row: Mapping[str, Any] | None) -> Candidate:
    rows: list[VerdictRow] = []
    problem = None
    if row is not None:
        try:
            rows = rows_of(row["decision"])
        except ValueError as error:
            problem = str(error)
    return Candidate(
        arm=arm,
        totals=queries.arm_totals(store, arm.id),
        decision=None if row is None else row["decision"],
        word=None if row is None else row["verdict"],
        rows=tuple(rows),
        problem=problem,
    )


def _repeat(store: Store, baseline: ArmRecord, candidates: Sequence[Candidate]) -> Repeat | None:
    for candidate in candidates:
        checked = (candidate.decision or {}).get("aa")
        if checked:
            return Repeat(address=checked["address"], checked=checked)
    again = queries.aa_of(store, baseline.run_id)
    return None if again is None or again.name != baseline.name else Repeat(address=again.address, checked=None)
