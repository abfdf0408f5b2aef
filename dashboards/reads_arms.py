"""What pages about whole arms read: error classes counted in SQL, gate words over runs, rows of jobs."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import func, select

from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.reads_flips import score_that_counts
from evalsvc.history import Point, changes_since, point_of, with_change_points
from evalsvc.store.job_tables import ExecutionRow
from evalsvc.store.records import ArmRecord
from evalsvc.store.schema import DecisionRow, ItemRow, Run, Sample, ScoreRow
from evalsvc.store.session import Store

NOT_COMPARED = "not compared yet; no gate decided it against this baseline"
_ALPHA = 0.05  # of `evalsvc history`'s intervals


def error_classes(store: Store, arm: ArmRecord) -> list[tuple[str, str | None, int]]:
    """By suite how an arm's scored answers are wrong: suite, error class (None where none was given) and count.

    A right answer has no class either, so that counts of None are of right and of unexplained ones together.
    """
    query = (
        select(ItemRow.suite, ScoreRow.error_class, func.count())
        .select_from(Sample)
        .join(ItemRow, ItemRow.id == Sample.item_pk)
        .join(ScoreRow, ScoreRow.id == score_that_counts(Sample, arm))
        .where(Sample.arm_id == arm.id, Sample.status == "scored")
        .group_by(ItemRow.suite, ScoreRow.error_class)
        .order_by(ItemRow.suite, func.count().desc())
    )
    with store.session() as session:
        return [(suite, error, count) for suite, error, count in session.execute(query)]


def failed_samples(store: Store, arm: ArmRecord) -> list[tuple[str, str, int, str]]:
    """By status and error class the samples without a score: status, class, count and one of their messages."""
    query = (
        select(Sample.status, Sample.error_class, func.count(), func.max(Sample.error_message))
        .where(Sample.arm_id == arm.id, Sample.status != "scored")
        .group_by(Sample.status, Sample.error_class)
        .order_by(func.count().desc())
    )
    with store.session() as session:
        return [(status, error or "", n, message or "") for status, error, n, message in session.execute(query)]


def series(
    store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord], left_out: Collection[int] = ()
) -> tuple[list[Point], dict[str, str]]:
    """An arm's points over its runs, oldest first, and the gate's word of each that was decided.

    A run that the gate decided against this baseline is shown with the gate's pooled numbers, the others with those of
    `evalsvc history`; both are the same measurement of the same pairs.

    Args:
        store: The database.
        baseline: What every run is compared with.
        arms: The arm in its runs, oldest first.
        left_out: Ids of arms that are not compared now, unless a gate did.
    """
    decided = _pooled(store, baseline, arms)
    began = _began(store, {arm.run_id for arm in arms})
    points = []
    for before, arm in zip([None, *arms], arms, strict=False):
        changed = changes_since(before, arm)
        found = decided.get(arm.id)
        if found is not None and found[1] is not None:
            points.append(_from_gate(arm, began[arm.run_id], changed, found[1]))
            continue
        if arm.id in left_out:
            points.append(Point(address=arm.address, created_at=began[arm.run_id], changed=changed, fault=NOT_COMPARED))
            continue

        def compute(arm: ArmRecord = arm, changed: tuple[str, ...] = changed) -> Point:
            return point_of(store, baseline, arm, began[arm.run_id], changed)

        points.append(kept(store, (baseline, arm), f"history {changed!r}", compute))
    words = {arm.address: decided[arm.id][0] for arm in arms if arm.id in decided}
    return with_change_points(points), words


def undecided(store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord]) -> list[ArmRecord]:
    """Of these arms the ones whose comparison with the baseline no decision holds: their samples have to be read."""
    decided = _pooled(store, baseline, arms)
    return [arm for arm in arms if decided.get(arm.id, ("", None))[1] is None]


def _pooled(
    store: Store, baseline: ArmRecord, arms: Sequence[ArmRecord]
) -> dict[int, tuple[str, dict[str, Any] | None]]:
    """By arm the newest decision's word and its pooled row, None where that holds no comparable numbers."""
    ids = [arm.id for arm in arms]
    newest = (
        select(func.max(DecisionRow.id))
        .where(DecisionRow.baseline_arm_id == baseline.id, DecisionRow.candidate_arm_id.in_(ids))
        .group_by(DecisionRow.candidate_arm_id)
    )
    query = select(DecisionRow.candidate_arm_id, DecisionRow.verdict, DecisionRow.decision)
    with store.session() as session:
        rows = session.execute(query.where(DecisionRow.id.in_(newest))).all()
    return {arm_id: (word, _comparable(word, document)) for arm_id, word, document in rows}


def _comparable(word: str, document: dict[str, Any]) -> dict[str, Any] | None:
    row = next((row for row in document.get("rows", ()) if row.get("level") == "pooled"), None)
    usable = row is not None and row.get("drop_points") is not None and row.get("interval_points") is not None
    return row if usable and word != "INVALID" and document.get("alpha") == _ALPHA and not document["stop"] else None


def _from_gate(arm: ArmRecord, began: str, changed: tuple[str, ...], row: dict[str, Any]) -> Point:
    low, high = row["interval_points"]
    return Point(
        address=arm.address,
        created_at=began,
        n=row["n"],
        lost=row["b"],
        gained=row["c"],
        drop=row["drop_points"] / 100,
        interval=(low / 100, high / 100),
        changed=changed,
    )


def _began(store: Store, run_ids: set[int]) -> dict[int, str]:
    with store.session() as session:
        found = session.execute(select(Run.id, Run.created_at).where(Run.id.in_(run_ids)))
        return {row.id: row.created_at for row in found}


def rows_of_table(store: Store, table: Any, columns: Sequence[str], most: int, newest: str) -> list[dict[str, Any]]:
    """The newest rows of a table of jobs, some of its columns.

    Args:
        store: The database.
        table: Its mapped class.
        columns: Names of columns.
        most: How many rows.
        newest: Column by which rows are sorted, the largest first.
    """
    chosen = [getattr(table, name) for name in columns]
    with store.session() as session:
        found = session.execute(select(*chosen).order_by(getattr(table, newest).desc()).limit(most))
        return [dict(zip(columns, row, strict=True)) for row in found]


def failed_jobs(store: Store) -> list[tuple[str, str, str, str]]:
    """Jobs whose newest ended execution failed or was missed: job, planned time, status and message, newest first."""
    newest = (
        select(func.max(ExecutionRow.id))
        .where(ExecutionRow.status.in_(("done", "failed", "missed")))
        .group_by(ExecutionRow.job)
    )
    query = (
        select(ExecutionRow.job, ExecutionRow.planned_at, ExecutionRow.status, ExecutionRow.message)
        .where(ExecutionRow.id.in_(newest), ExecutionRow.status != "done")
        .order_by(ExecutionRow.planned_at.desc())
    )
    with store.session() as session:
        return [(job, planned, status, message or "") for job, planned, status, message in session.execute(query)]
