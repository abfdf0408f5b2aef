"""Dropping old runs, whole. What may not go is decided first and said; the rows go in one transaction."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Table, delete, func, or_, select, text

from evalsvc.store.bulk import among
from evalsvc.store.job_tables import RunKeyRow
from evalsvc.store.queries import runs as all_runs
from evalsvc.store.records import RunRecord
from evalsvc.store.schema import Arm, Base, BaselineRow, DecisionRow, ItemRow, Run, Sample
from evalsvc.store.session import Store

_RUNS = cast(Table, Run.__table__)


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What becomes of a database's runs.

    Attributes:
        dropped: Main runs that go, oldest first; their A/A runs go with them.
        kept: By run that is older than the newest ones and stays all the same, why it does.
        rows: By table how many rows go.
    """

    dropped: tuple[RunRecord, ...]
    kept: dict[int, str]
    rows: dict[str, int]


def plan_pruning(store: Store, keep: int) -> Pruning:
    """What `prune` would drop; nothing is changed.

    Of each experiment (by name) the newest `keep` main runs stay. Of the older ones stays whatever was ever promoted,
    every run that a decision joins to another one, so that no decision is left without the samples that it rests on,
    and an unfinished run that a job goes on with. A run's decisions about its own arms go with it.

    Args:
        store: Open database.
        keep: At least 1.
    """
    known = all_runs(store)
    mains = [run for run in known if run.kind == "main"]
    newest: dict[str, list[int]] = {}
    for run in reversed(mains):
        newest.setdefault(run.experiment, []).append(run.id)
    fresh = {run_id for ids in newest.values() for run_id in ids[:keep]}
    protected = _protected(store)
    repeats: dict[int, list[int]] = {}
    for run in known:
        if run.linked_run_id is not None:
            repeats.setdefault(run.linked_run_id, []).append(run.id)
    dropped, kept = [], {}
    for run in mains:
        if run.id in fresh:
            continue
        why = next((protected[i] for i in (run.id, *repeats.get(run.id, ())) if i in protected), None)
        if why is None:
            dropped.append(run)
        else:
            kept[run.id] = why
    ids = [i for run in dropped for i in (*repeats.get(run.id, ()), run.id)]
    return Pruning(dropped=tuple(dropped), kept=kept, rows=_counts(store, ids))


def prune(store: Store, keep: int) -> Pruning:
    """Drops what `plan_pruning` names and the items that nobody answered any more; the caller holds the run lock.

    Raises:
        StoreError: A store that was opened for reading only; then nothing was changed.
    """
    with store.transaction() as session:
        connection = session.connection()
        if connection.dialect.name == "postgresql":  # in SQLite nobody else writes by now
            session.execute(text("LOCK TABLE decisions, baselines, run_keys IN SHARE ROW EXCLUSIVE MODE"))
        planned = plan_pruning(store, keep)
        main_ids = [run.id for run in planned.dropped]
        chosen = or_(among(connection, Run.id, main_ids), among(connection, Run.linked_run_id, main_ids))
        ids = list(session.scalars(select(Run.id).where(chosen)))
        for table, which in _cascade(_RUNS, among(connection, _RUNS.c.id, ids)):
            session.execute(delete(table).where(which))
        session.execute(delete(ItemRow).where(ItemRow.id.not_in(select(Sample.item_pk))))
    return planned


def _protected(store: Store) -> dict[int, str]:
    """By run why it may not go."""
    found: dict[int, str] = {}
    base, cand = (cast(Table, Arm.__table__).alias(name) for name in ("b", "c"))
    joined = (
        select(base.c.run_id, cand.c.run_id)
        .select_from(DecisionRow)
        .join(base, base.c.id == DecisionRow.baseline_arm_id)
        .join(cand, cand.c.id == DecisionRow.candidate_arm_id)
        .where(base.c.run_id != cand.c.run_id)
    )
    unfinished = select(RunKeyRow.run_id).join(Run, Run.id == RunKeyRow.run_id).where(Run.status == "running")
    promoted = select(Arm.run_id, BaselineRow.name).join(BaselineRow, BaselineRow.arm_id == Arm.id)
    with store.session() as session:
        for run_id in session.scalars(unfinished):
            found[run_id] = "unfinished, and a job goes on with it"
        for ours, theirs in session.execute(joined.distinct()):
            found[ours] = f"a decision about run {theirs} rests on it"
            found[theirs] = f"a decision against run {ours} rests on it"
        for run_id, name in session.execute(promoted):
            found[run_id] = f"promoted as @{name}"
    return found


def _cascade(table: Table, which: Any) -> Iterator[tuple[Table, Any]]:
    """Rows that refer to chosen rows of a table, the furthest first, then these: an order in which they can go."""
    for other in reversed(Base.metadata.sorted_tables):
        for key in other.foreign_keys:
            if key.column.table is table and other is not table:
                yield from _cascade(other, key.parent.in_(select(table.c.id).where(which)))
    yield table, which


def _counts(store: Store, run_ids: list[int]) -> dict[str, int]:
    """By table the rows that go with runs, each once."""
    chosen: dict[Table, list[Any]] = {}
    with store.session() as session:
        for table, which in _cascade(_RUNS, among(session.connection(), _RUNS.c.id, run_ids)):
            chosen.setdefault(table, []).append(which)
        counted = {
            table.name: session.scalar(select(func.count()).select_from(table).where(or_(*each))) or 0
            for table, each in chosen.items()
        }
    return {name: count for name, count in sorted(counted.items()) if count}
