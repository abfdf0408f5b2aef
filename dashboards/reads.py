"""What every page needs from the database, read-only: runs, baselines, candidates and what the gate said of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from evalsvc.dashboards.rows import VerdictRow, rows_of
from evalsvc.store import queries
from evalsvc.store.presence import words
from evalsvc.store.records import ArmRecord
from evalsvc.store.schema import Arm, Run
from evalsvc.store.session import Store


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """A run to choose; `began` and `ended` are ISO 8601 in UTC."""

    id: int
    experiment: str
    status: str
    began: str
    ended: str | None
    seed: int
    baseline: str


@dataclass(frozen=True)
class Held:
    """Samples that an arm holds, and those of them that are errors."""

    samples: int = 0
    errors: int = 0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One arm against the baseline; `decision` is None until a gate has decided it, `decided_at` is ISO 8601."""

    arm: ArmRecord
    held: Held
    decision: Mapping[str, Any] | None
    decided_at: str | None
    word: str | None
    rows: tuple[VerdictRow, ...]
    problem: str | None

    def row(self, level: str, suite: str = "") -> VerdictRow | None:
        """The first row of a level, of a suite where one is named."""
        return next((row for row in self.rows if row.level == level and suite in ("", row.suite)), None)


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The A/A, the baseline against itself. `checked` is the gate's result {n, lost, gained, ...}, None before it."""

    address: str
    checked: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run against one baseline, and the candidate that is looked at (None where the run has no other arm)."""

    run: RunChoice
    baseline: ArmRecord
    baseline_held: Held
    candidates: tuple[Candidate, ...]
    repeat: Repeat | None
    chosen: Candidate | None = None

    @property
    def arms(self) -> tuple[ArmRecord, ...]:
        """The baseline and every candidate."""
        return (self.baseline, *(candidate.arm for candidate in self.candidates))

    @property
    def own_baseline(self) -> str:
        """Address of the run's own baseline: KL and effects are measured against it, whichever a page compares with."""
        return f"{self.run.id}:{self.run.baseline}"

    def named(self, arm: ArmRecord) -> str:
        """An arm's name; its address where another arm of the page has that name, as a baseline of another run may."""
        return arm.address if sum(other.name == arm.name for other in self.arms) > 1 else arm.name

    @property
    def finished(self) -> bool:
        """Whether nothing of what the page shows is still being computed."""
        return self.run.status == "finished"


def main_runs(store: Store) -> list[RunChoice]:
    """Runs that have arms to look at, newest first; an A/A stands under the run that it repeats."""
    columns = (Run.id, Run.experiment, Run.status, Run.created_at, Run.finished_at, Run.seed, Run.baseline)
    query = select(*columns).where(Run.kind == "main", Run.id.in_(select(Arm.run_id))).order_by(Run.id.desc())
    word = words(store)
    with store.session() as session:
        return [
            RunChoice(
                id=row.id,
                experiment=row.experiment,
                status=word(row.id, row.status),
                began=row.created_at,
                ended=row.finished_at,
                seed=row.seed,
                baseline=row.baseline,
            )
            for row in session.execute(query)
        ]


def baselines(
    store: Store, run: RunChoice, of_run: Sequence[ArmRecord], decided: Sequence[Mapping[str, Any]]
) -> list[ArmRecord]:
    """Arms that a page can compare with: the run's own baseline, then others that a gate was asked about.

    An arm with an injected fault is none.
    """
    own = [arm for arm in of_run if arm.name == run.baseline]
    known = {arm.id: arm for arm in of_run}
    asked = dict.fromkeys(row["baseline_arm_id"] for row in decided)
    elsewhere = dict.fromkeys(row["baseline_run_id"] for row in decided if row["baseline_arm_id"] not in known)
    for run_id in elsewhere:
        known |= {arm.id: arm for arm in queries.arms(store, run_id)}
    others = [known[arm_id] for arm_id in asked if known[arm_id] not in own]
    return [arm for arm in own + others if not arm.injected]


def usual_baseline(bases: Mapping[str, ArmRecord], decided: Sequence[Mapping[str, Any]]) -> str:
    """The address of the first baseline that a gate was asked about; of the first of all where none was.

    Args:
        bases: By address, at least one, the run's own first.
        decided: As `store.queries.decisions` returns them.
    """
    asked = {row["baseline_arm_id"] for row in decided}
    return next((address for address, arm in bases.items() if arm.id in asked), next(iter(bases)))


def held(store: Store, arms: Sequence[ArmRecord]) -> dict[int, Held]:
    """By arm how many samples it holds, as its own row counts them: no sample is read."""
    query = select(Arm.id, Arm.stored, Arm.errors).where(Arm.id.in_([arm.id for arm in arms]))
    with store.session() as session:
        return {row.id: Held(row.stored, row.errors) for row in session.execute(query)}


def run_view(
    store: Store,
    run: RunChoice,
    baseline: ArmRecord,
    of_run: Sequence[ArmRecord],
    decided: Sequence[Mapping[str, Any]],
    counts: Mapping[int, Held],
) -> RunView:
    """A run's candidates with what the gate said of each against this baseline.

    Args:
        store: The database.
        run: Which run.
        baseline: Against which arm.
        of_run: The run's arms, in their order.
        decided: As `store.queries.decisions` returns them.
        counts: As `held` returns them, of all these arms.
    """
    newest = {row["candidate_arm_id"]: row for row in decided if row["baseline_arm_id"] == baseline.id}
    candidates = tuple(
        _candidate(arm, counts.get(arm.id, Held()), newest.get(arm.id)) for arm in of_run if arm.id != baseline.id
    )
    return RunView(
        run=run,
        baseline=baseline,
        baseline_held=counts.get(baseline.id, Held()),
        candidates=candidates,
        repeat=_repeat(store, baseline, candidates),
    )


def _candidate(arm: ArmRecord, counted: Held, row: Mapping[str, Any] | None) -> Candidate:
    rows: list[VerdictRow] = []
    problem = None
    if row is not None:
        try:
            rows = rows_of(row["decision"])
        except ValueError as error:
            problem = str(error)
    return Candidate(
        arm=arm,
        held=counted,
        decision=None if row is None else row["decision"],
        decided_at=None if row is None else row["created_at"],
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
